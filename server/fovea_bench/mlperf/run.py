"""A run of LoadGen, in a process of its own, and the figures of its log."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fovea_bench.mlperf.carriers import Carrier
from fovea_bench.mlperf.scenario import BENCHMARK, SAMPLES, Scenario, Terms
from fovea_files.predictors import IN_FLIGHT
from fovea_preprocess.errors import FoveaError, Unavailable

DETAIL = "mlperf_log_detail.txt"
_MARKER = ":::MLLOG"
_TICK_S = 0.5
_PERCENTILES = ("50.00", "90.00", "99.00")


@dataclass(frozen=True, slots=True)
class LoadGenRun:
    """The outcome of a run.

    Attributes:
        messages: of LoadGen's log, the first of each key.
        failures: reason -> number of images without an answer.
        seconds: of the test.
        cpu_s: of the process that LoadGen was in, during the test.
    """

    scenario: Scenario
    messages: dict[str, Any]
    failures: dict[str, int]
    samples: int
    seconds: float
    cpu_s: float

    @property
    def figure(self) -> float | None:
        """The figure that counts: milliseconds or images/s; None where the run was too short."""
        # LoadGen writes 0 for an estimate that it cannot make of so few queries.
        found = [self.messages[key] for key in self.scenario.keys if self.messages.get(key)]
        if not found:
            return None
        return float(found[0]) * (1e-6 if self.scenario.at_once else 1.0)

    @property
    def latency_ms(self) -> dict[str, float]:
        """Percentiles of the latency of a query."""
        kind = "per_query_" if self.scenario is Scenario.MULTI_STREAM else ""
        keys = {f"p{p[:2]}": f"result_{p}_percentile_{kind}latency_ns" for p in _PERCENTILES}
        return {
            name: 1e-6 * self.messages[key] for name, key in keys.items() if key in self.messages
        }

    @property
    def invalid(self) -> str:
        """The reason for which LoadGen finds the run invalid; empty where it finds it valid."""
        if self.messages.get("result_validity") == "VALID":
            return ""
        reasons = (self.messages.get(k) for k in ("result_invalid_reason", "early_stopping_result"))
        # It writes a list with asterisks.
        words = " ".join(filter(None, reasons)).replace("*", " ").split()
        return " ".join(words) or "no reason given"


def loadgen_run(
    terms: Terms,
    carrier: Callable[[], Carrier],
    logs: Path,
    warmup_s: float,
    progress: Callable[[int], None],
) -> LoadGenRun:
    """Run a scenario and wait for its end.

    Args:
        terms: of the run.
        carrier: opens the way to the model, in the process of the load.
        logs: folder for what LoadGen writes.
        warmup_s: seconds under the load of the scenario before the test.
        progress: takes the number of images that have been answered; 0 when the test begins.

    Raises:
        Unavailable: an image was not answered in the warm-up, or LoadGen died.
    """
    # mlperf.conf is read by the first run of a process only, so each run has one.
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=_child, args=(theirs, terms, carrier, logs, warmup_s), daemon=True
    )
    process.start()
    theirs.close()
    try:
        while True:
            match pipe.recv():
                case int(answered):
                    progress(answered)
                case LoadGenRun() as run:
                    return run
                case reason:
                    raise Unavailable(str(reason))
    except (EOFError, OSError) as error:
        raise Unavailable("LoadGen has died: run the command again") from error
    finally:
        process.kill()
        process.join()
        pipe.close()


def _child(
    pipe: Connection, terms: Terms, opened: Callable[[], Carrier], logs: Path, warmup_s: float
) -> None:
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with opened() as carrier:
            at_once = terms.scenario.at_once or IN_FLIGHT
            terms.write(logs / "user.conf", _warm_up(carrier, at_once, warmup_s))
            pipe.send(_test(terms.scenario, carrier, logs, pipe.send))
    except FoveaError as error:
        pipe.send(str(error))


def _warm_up(carrier: Carrier, at_once: int, seconds: float) -> float:
    """Keep images under way for a time; return the images/s of its second half.

    Unavailable: one was not answered.
    """
    free = threading.Semaphore(at_once)
    answered: list[float] = []
    failures: list[str] = []

    def done(_: int, failure: str) -> None:
        answered.append(time.perf_counter())
        if failure:
            failures.append(failure)
        free.release()

    begin = time.perf_counter()
    images = count()
    while time.perf_counter() < begin + seconds or not answered:
        free.acquire()
        if failures:
            raise Unavailable(f"an image was not answered: {failures[0]}")
        carrier.issue([(0, next(images))], done)
    for _ in range(at_once):
        free.acquire()
    if failures:
        raise Unavailable(f"an image was not answered: {failures[0]}")
    end = max(answered)
    half = (begin + end) / 2
    return sum(half < each for each in answered) / (end - half)


def _test(
    scenario: Scenario, carrier: Carrier, logs: Path, tell: Callable[[int], None]
) -> LoadGenRun:
    import mlperf_loadgen as loadgen

    failures: Counter[str] = Counter()
    answered, over = count(1), threading.Event()
    latest = 0

    def done(number: int, failure: str) -> None:
        nonlocal latest
        latest = next(answered)
        if failure:
            failures[failure] += 1
        # An image that failed counts as answered: LoadGen knows no failures, and would wait.
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    def issue(samples: list[Any]) -> None:
        carrier.issue([(sample.id, sample.index) for sample in samples], done)

    def report() -> None:
        while not over.wait(_TICK_S):
            tell(latest or 1)

    settings, log = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.FromConfig(f"{logs / 'user.conf'}", BENCHMARK, scenario)
    log.log_output.outdir, log.enable_trace = f"{logs}", False
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    reporter = threading.Thread(target=report)
    tell(0)
    reporter.start()
    began, cpu_s = time.perf_counter(), time.process_time()
    loadgen.StartTestWithLogSettings(system, library, settings, log)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    over.set()
    reporter.join()
    messages = dict(reversed([*read_log(logs / DETAIL)]))
    return LoadGenRun(scenario, messages, dict(failures), latest, seconds, cpu_s)


def read_log(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a detailed log of LoadGen, in its order."""
    for line in path.read_text().splitlines():
        if line.startswith(_MARKER):
            message = json.loads(line.removeprefix(_MARKER))
            yield message["key"], message["value"]
