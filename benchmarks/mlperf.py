"""Runs MLPerf's scenarios with MLCommons' LoadGen, and prints a table; unverified by MLCommons.

    python benchmarks/mlperf.py [MODEL ...] [--repository DIR] [--quick SECONDS] [--json FILE]

MODEL is one of the repository. yolov8n, yolov5n, mobilenetv2 and yolo11l are built where they are
not there: in FP32, bfloat16 and INT8, with the fastest backend. These are the default, in
SingleStream, MultiStream and Offline over HTTP, on COCO's images.

The seeds, counts and durations are those of mlperf.conf for YOLO11-l, the newest detector. Without
`--quick` a scenario takes ten minutes, as MLPerf wants it; with it, a run is never valid. Times are
from a JPEG to its boxes: LoadGen's own rules leave decoding and resizing out. `--in-process` runs
the engine beside LoadGen, without a server. The logs are those that the submission checker takes.
YOLO11-l has random weights (`yolo11l.py`), so its INT8 is not built: there is nothing to keep.
"Core-seconds" are the CPU time of server and load in Offline; of published rows, the cores of the
machine by the seconds of an image.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen
import onnx
import uvloop
from tables import SCENARIOS, mlperf
from yolo11l import yolo11l

from fovea_engines.device import processor_name, sets_for
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import decode_image
from fovea_server.bench.requests import image_requests
from fovea_server.bench.sender import Connection, error_of
from fovea_server.bench.server_process import ServerProcess
from fovea_server.bench.target import Target

SHARED = Path(__file__).resolve().parents[2] / "shared"
COCO = SHARED / "data" / "coco64"
FOVEA = (sys.executable, "-m", "fovea_server.cli.main")
MODELS = ("yolov8n", "yolov5n", "mobilenetv2", "yolo11l")

# The benchmark of mlperf.conf, its images that a run draws from, and the least of an Offline run.
BENCHMARK, SAMPLES, OFFLINE_SAMPLES = "yolo", 64, 1525
# LoadGen makes the queries before the test, and too few end it before its time. Offline has to
# answer all of them; a stream leaves what it does not need.
MARGIN, STREAM_MARGIN = 1.2, 4
# Images that a client of Offline has under way.
IN_FLIGHT = 16
WARMUP_S, TIMEOUT_S = 2.0, 300.0

Done = Callable[[int, str], None]
"""Takes the id of a sample and the reason of a failure, empty for an answer; in any thread."""
Issue = Callable[[Sequence[tuple[int, int]], Done], None]
"""Has images answered, by id and number, and returns at once."""


@dataclass(frozen=True)
class Scenario:
    """A load: images that are under way at most (0: no limit), and the figure that counts.

    `keys` of LoadGen's log have the figure: of runs long enough to be judged, and of others.
    """

    at_once: int
    figure: str
    keys: tuple[str, ...]


LOADS = {
    "SingleStream": Scenario(
        1, "p90 of a query, ms", ("early_stopping_latency_ss", "result_90.00_percentile_latency_ns")
    ),
    "MultiStream": Scenario(
        8,
        "p99 of a query of 8, ms",
        ("early_stopping_latency_ms", "result_99.00_percentile_per_query_latency_ns"),
    ),
    "Offline": Scenario(0, "images/s", ("result_samples_per_second",)),
    "Server": Scenario(0, "images/s", ("result_completed_samples_per_sec",)),
}


@dataclass(frozen=True)
class Run:
    """A scenario that is to be run; `seconds` is None for the ten minutes of mlperf.conf."""

    repository: Path
    model: str
    scenario: str
    in_process: bool
    images: Path
    logs: Path
    seconds: float | None
    rate: float
    p99_ms: float

    @property
    def load(self) -> Scenario:
        """The load of the scenario."""
        return LOADS[self.scenario]

    def user_conf(self, images_per_s: float) -> str:
        """Write user.conf, from the rate that a warm-up reached under this load."""
        lines: dict[str, object] = {}
        if self.load.at_once:
            query_ms = 1e3 * self.load.at_once / images_per_s
            lines["target_latency"] = max(1, int(query_ms / STREAM_MARGIN))
        elif self.scenario == "Offline":
            lines["target_qps"] = f"{MARGIN * images_per_s:.3f}"
            lines["min_query_count"] = OFFLINE_SAMPLES
        else:
            lines |= {"target_qps": f"{self.rate:g}", "target_latency": max(1, int(self.p99_ms))}
        if self.seconds is not None:
            lines |= {"min_duration": int(1e3 * self.seconds), "min_query_count": 1}
        return "".join(f"*.{self.scenario}.{name} = {value}\n" for name, value in lines.items())


class Sender:
    """Sends images over kept connections, from an event loop in a thread of its own.

    LoadGen calls from threads of its own, which then hold the interpreter for microseconds only.
    """

    def __init__(self, target: Target, images: Sequence[bytes], at_once: int) -> None:
        self._address, self._requests = target.address, image_requests(target, images)
        self._at_once = at_once or sys.maxsize
        self._idle: list[Connection] = []
        self._waiting: deque[tuple[int, int, Done]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def issue(self, samples: Sequence[tuple[int, int]], done: Done) -> None:
        """Send requests, no more at a time than there is room for."""
        self._loop.call_soon_threadsafe(self._take, samples, done)

    def _take(self, samples: Sequence[tuple[int, int]], done: Done) -> None:
        self._waiting.extend((number, image, done) for number, image in samples)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._at_once:
            task = self._loop.create_task(self._answer(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._fill()

    async def _answer(self, number: int, image: int, done: Done) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                failure = await self._ask(self._requests[image % len(self._requests)])
        except OSError as error:  # TimeoutError among them
            failure = error.strerror or str(error) or f"no answer within {TIMEOUT_S:g} s"
        done(number, failure)

    async def _ask(self, request: bytes) -> str:
        connection = self._idle.pop() if self._idle else None
        if connection is None or not connection.open:
            connection = await Connection.connect(self._address.host, self._address.port)
        reply = await connection.ask(request)
        self._idle.append(connection)
        return "" if reply.status == 200 else ": ".join(error_of(reply.body))


def in_process(folder: Path, images: Sequence[bytes], alone: bool) -> Issue:
    """Run an engine in this process: an image has all cores if it is `alone`, and else one."""
    engine = Engine.open(folder)
    threads = ThreadPoolExecutor(1 if alone else engine.session.concurrency)

    def answer(number: int, image: int, done: Done) -> None:
        failure = ""
        try:
            engine.predict(decode_image(images[image % len(images)]).pixels, alone=alone)
        except FoveaError as error:
            failure = str(error)
        done(number, failure)

    def issue(samples: Sequence[tuple[int, int]], done: Done) -> None:
        for number, image in samples:
            threads.submit(answer, number, image, done)

    return issue


def measure(run: Run) -> dict[str, Any]:
    """Run a scenario in a process that ends with it: LoadGen reads mlperf.conf once in each."""
    # LoadGen's main thread runs no handler of Python.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run.logs.mkdir(parents=True, exist_ok=True)
    images = [file.read_bytes() for file in image_files(run.images, SAMPLES)]
    server = None
    folder = run.repository / run.model
    folder /= str(ModelRepository(run.repository).served(run.model)[-1])
    card = EngineCard.read(folder / CARD_FILE)
    with ExitStack() as stack:
        if run.in_process:
            issue = in_process(folder, images, run.scenario == "SingleStream")
        else:
            server = stack.enter_context(ServerProcess(run.repository, run.model))
            target = stack.enter_context(Target(server.url, run.model, None))
            at_once = IN_FLIGHT if run.scenario == "Offline" else 0
            issue = Sender(target, images, at_once).issue
        rate = warm_up(issue, run.load.at_once or IN_FLIGHT, min(WARMUP_S, run.seconds or WARMUP_S))
        (run.logs / "user.conf").write_text(run.user_conf(rate))
        server_s = server.cpu_s if server else 0.0
        failures, seconds, load_s = test(run, issue)
        server_s = server.cpu_s - server_s if server else 0.0
    log = dict(reversed([*read_log(run.logs / "mlperf_log_detail.txt")]))
    faults = find_faults(run, log, len(images), failures)
    answered = failures.total()
    return {
        "mlperf": "unverified by MLCommons",
        "loadgen": version("mlcommons-loadgen"),
        "model": run.model,
        "engine": f"{card.backend} {card.precision}",
        "scenario": run.scenario,
        "over": "process" if run.in_process else "http",
        "valid": not faults,
        "faults": faults,
        "figure": {"name": run.load.figure, "value": figure(run.load, log)},
        "images": answered,
        "seconds": round(seconds, 3),
        "cpu_ms": {
            "server": round(1e3 * server_s / answered, 3),
            "load": round(1e3 * load_s / answered, 3),
        },
        "logs": str(run.logs),
    }


def warm_up(issue: Issue, at_once: int, seconds: float) -> float:
    """Keep images under way for a time; return the images/s of its second half."""
    free = threading.Semaphore(at_once)
    answered, failures = list[float](), list[str]()

    def done(_: int, failure: str) -> None:
        answered.append(time.perf_counter())
        if failure:
            failures.append(failure)
        free.release()

    begin, images = time.perf_counter(), count()
    while (time.perf_counter() < begin + seconds or not answered) and not failures:
        free.acquire()
        issue([(0, next(images))], done)
    for _ in range(at_once):
        free.acquire()
    if failures:
        raise SystemExit(f"an image was not answered: {failures[0]}")
    half = (begin + max(answered)) / 2
    return sum(half < each for each in answered) / (max(answered) - half)


def test(run: Run, issue: Issue) -> tuple[Counter[str], float, float]:
    """Let LoadGen test; return images by failure (""), seconds, and CPU time of this process."""
    failures = list[str]()

    def done(number: int, failure: str) -> None:
        failures.append(failure)
        # An image that failed counts as answered: LoadGen knows no failures, and would wait.
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    def query(samples: list[Any]) -> None:
        issue([(sample.id, sample.index) for sample in samples], done)

    settings, log = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario = getattr(loadgen.TestScenario, run.scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.FromConfig(f"{run.logs / 'user.conf'}", BENCHMARK, run.scenario)
    log.log_output.outdir, log.enable_trace = f"{run.logs}", False
    system = loadgen.ConstructSUT(query, lambda: None)
    library = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    began, cpu_s = time.perf_counter(), time.process_time()
    loadgen.StartTestWithLogSettings(system, library, settings, log)
    return Counter(failures), time.perf_counter() - began, time.process_time() - cpu_s


def read_log(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a detailed log of LoadGen, in its order."""
    for line in path.read_text().splitlines():
        if line.startswith(":::MLLOG"):
            message = json.loads(line.removeprefix(":::MLLOG"))
            yield message["key"], message["value"]


def figure(load: Scenario, log: dict[str, Any]) -> float | None:
    """Return milliseconds or images/s; None where the run was too short."""
    # LoadGen writes 0 for an estimate that it cannot make of so few queries.
    found = [log[key] for key in load.keys if log.get(key)]
    return round(float(found[0]) * (1e-6 if load.at_once else 1.0), 3) if found else None


def find_faults(run: Run, log: dict[str, Any], images: int, failures: Counter[str]) -> list[str]:
    """List the reasons for which this is no valid run."""
    faults = []
    if run.seconds is not None:
        faults.append(f"--quick: {run.seconds:g} s, and a valid run takes 10 minutes")
    if images < SAMPLES:
        faults.append(f"{images} images: a valid run draws from {SAMPLES}")
    faults += [f"{n} not answered: {reason}" for reason, n in failures.items() if reason]
    if log.get("result_validity") != "VALID":
        reasons = (log.get(key) for key in ("result_invalid_reason", "early_stopping_result"))
        # It writes a list with asterisks.
        words = " ".join(filter(None, reasons)).replace("*", " ").split()
        faults.append(f"LoadGen: {' '.join(words) or 'no reason given'}")
    return faults


def build(model: str, precision: str, repository: Path) -> str | None:
    """Build a model that is not there; returns its name, or None if it fails its check."""
    name = f"{model}-{precision}"
    if (repository / name).is_dir():
        return name
    source = SHARED / "models" / f"{model}.onnx"
    if model == "yolo11l":
        source = repository.parent / f"{model}.onnx"
        onnx.save(yolo11l()[0], source)
    words = [f"{source}", f"--name={name}", f"--repository={repository}"]
    words.append(f"--precision={precision}")
    if precision == "int8":
        words.append(f"--calibration={COCO / 'calibration'}")
    done = subprocess.run([*FOVEA, "build", *words], stdout=subprocess.DEVNULL)
    return name if done.returncode == 0 else None


def find_models(models: Sequence[str], repository: Path) -> Iterator[tuple[str, str]]:
    """Yield title and name of models of the repository; those of MODELS are built."""
    precisions = ["fp32", *["bf16"] * bool(sets_for("bf16")), "int8"]
    for model in models:
        if (repository / model).is_dir() or model not in MODELS:
            yield model, model
            continue
        for precision in precisions[: -1 if model == "yolo11l" else None]:
            if (name := build(model, precision, repository)) is not None:
                yield f"{model} {precision}", name


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--repository", type=Path, help="default: a temporary one")
    parser.add_argument("--images", type=Path, default=COCO / "val", metavar="DIR")
    parser.add_argument("--scenario", action="append", choices=LOADS, help="may be repeated")
    parser.add_argument("--in-process", action="store_true", help="start no server")
    parser.add_argument("--quick", type=float, metavar="SECONDS", help="length of a scenario")
    parser.add_argument("--rate", type=float, help="of Server: queries/s at random times")
    parser.add_argument("--p99-ms", type=float, help="of Server: limit of 99 in 100 queries")
    parser.add_argument("--logs", type=Path, default=Path("mlperf"), metavar="DIR")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    scenarios = given.scenario or SCENARIOS
    if "Server" in scenarios and not (given.rate and given.p99_ms):
        parser.error("--scenario Server takes --rate and --p99-ms")
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        repository = given.repository or Path(folder) / "models"
        for title, model in find_models(given.models, repository):
            runs = report["runs"][title] = {}
            for scenario in scenarios:
                run = Run(
                    repository,
                    model,
                    scenario,
                    given.in_process,
                    given.images,
                    given.logs / model / scenario,
                    given.quick,
                    given.rate or 0.0,
                    given.p99_ms or 0.0,
                )
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    try:
                        found = runs[scenario] = pool.submit(measure, run).result()
                    except (BrokenProcessPool, FoveaError) as error:
                        raise SystemExit(f"{title}, {scenario}: {error}") from None
                name, value = found["figure"].values()
                print(f"{title}, {scenario}: {name}: {value}; {found['faults'] or 'valid'}")
                if given.json:  # each takes ten minutes
                    given.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['machine']}; {report['date']}")
    if set(SCENARIOS) <= set(scenarios):
        print(f"\n{mlperf(report)}")


if __name__ == "__main__":
    main()
