"""Images/s over HTTP as a ratio to the bare loop of the same engine, measured in turn.

    python benchmarks/serve.py MODEL.onnx [--precision int8] [--rounds 5] [--json FILE]

MODEL is of any task. The bare loop decodes, letterboxes, infers, decodes the head, suppresses and
maps back, to run lengths of masks and pixels of maps, with no server: with one caller that may use
every core (the limit for a lone client), and with a caller a core (the limit under load). It runs
on the CPU backend that is the fastest at it, whichever one the server was given. Each HTTP figure
is divided by the mean of the limits measured right before and right after it, so that a noisy
machine cancels out; medians over the rounds are shown. The load generator shares the machine; its
own CPU share is stated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
from http_load import Loaded, http_load

from fovea_engines.backends.registry import BACKENDS, CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import AUTO, BuildPlan, choices
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.engine import Engine
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.results.detections import Detections
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.mask_encoding import encode_masks
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.image import decode_image
from fovea_server.bench.requests import image_requests
from fovea_server.bench.target import Target

MODEL = "bench"
COCO = Path(__file__).resolve().parents[2] / "shared" / "data" / "coco64"


def bare_loop(engine: Engine, images: Sequence[bytes], callers: int, seconds: float) -> float:
    """Images/s of the loop without a server."""
    source = itertools.cycle(images)
    options = PredictOptions()
    done = [0] * callers
    started = time.perf_counter()
    until = started + seconds

    def call(caller: int) -> None:
        preprocessor, head = engine.preprocessor, engine.head
        assert preprocessor is not None
        assert head is not None
        spec = preprocessor.spec
        batch = np.empty((1, *spec.row_shape), spec.dtype)
        name = engine.session.inputs[0].name
        while time.perf_counter() < until:
            image = decode_image(next(source))
            back = preprocessor(image.pixels, batch[0])
            outputs = engine.session.infer({name: batch}, alone=callers == 1)
            read(head.decode(outputs, 0, options).to_source(back), options)
            done[caller] += 1

    threads = [threading.Thread(target=call, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def read(found: TaskResult, options: PredictOptions) -> None:
    """Compute what is left until it is read."""
    if isinstance(found, ClassMap | SoftMask | DepthMap):
        found.pixels()
    elif isinstance(found, Detections) and found.masks is not None:
        list(encode_masks(found.masks, options.mask))


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def start_server(
    repository: Path,
    image: bytes,
    settings: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> tuple[subprocess.Popen[bytes], int, float]:
    """Start `fovea serve`; returns it, its port and the seconds until its first answer.

    `settings` are variables of its environment, `python` one that Fovea is installed for.
    """
    port, *others = free_ports(3)
    flags = zip(("--port", "--grpc-port", "--metrics-port"), (port, *others), strict=True)
    started = time.perf_counter()
    # The access log has a line for each request.
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [
                python,
                "-P",
                "-m",
                "fovea_server.cli.main",
                "serve",
                str(repository),
                *(f"{flag}={number}" for flag, number in flags),
            ],
            env=os.environ | (settings or {}),
            stderr=log,
        )
        head = (
            f"POST /v1/models/{MODEL}/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        )
        request = head.encode() + f"Content-Length: {len(image)}\r\n\r\n".encode() + image
        while time.perf_counter() - started < 60:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                    connection.sendall(request)
                    if b" 200 " in connection.recv(65536)[:16]:
                        return server, port, time.perf_counter() - started
            except OSError:
                pass
            time.sleep(0.005)
        server.kill()
        log.seek(0)
        raise SystemExit(f"the server did not answer within 60 s: {log.read()[-2000:].decode()}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, default=COCO / "val")
    parser.add_argument("--backend", choices=[AUTO, *CPU_BACKENDS], default=AUTO)
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16", "int8"], default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    images = [p.read_bytes() for p in sorted(arguments.images.glob("*.jpg"))]
    with tempfile.TemporaryDirectory() as folder:
        built = build_all(arguments.model, arguments.precision, Path(folder))
        served = built[arguments.backend]
        built.pop(AUTO)
        server, port, first_answer_s = start_server(served, images[0])
        try:
            report = measure(built, port, server.pid, images, arguments)
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        card = EngineCard.read(ModelRepository(served).folder(MODEL) / CARD_FILE)
    report |= {
        "model": arguments.model.name,
        "engine": f"{card.precision} {card.backend} {card.backend_version}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "start_to_first_answer_s": round(first_answer_s, 2),
        "exit_code": code,
    }
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def build_all(model: Path, precision: str, folder: Path) -> dict[str, Path]:
    """Build for each CPU backend that can, and for `auto`; returns their repositories."""
    able = [name for name in CPU_BACKENDS if precision in BACKENDS[name].precisions]
    plans = {name: BuildPlan(model, MODEL, folder / name, backend=name) for name in able}
    plans[AUTO] = BuildPlan(model, MODEL, folder / AUTO, choices=choices(AUTO, precision))
    calibration = COCO / "calibration" if precision == "int8" else None
    for plan in plans.values():
        build(replace(plan, precision=precision, calibration=calibration), ConsoleProgress())
    return {name: plan.repository for name, plan in plans.items()}


def measure(
    repositories: Mapping[str, Path],
    port: int,
    pid: int,
    images: Sequence[bytes],
    arguments: argparse.Namespace,
) -> dict[str, object]:
    """Rounds of limit, load, limit."""
    seconds = arguments.seconds
    requests = image_requests(Target(f"http://127.0.0.1:{port}", MODEL, None), images)
    loads: dict[int, list[Loaded]] = {n: [] for n in arguments.clients}
    ratios: dict[int, list[float]] = {n: [] for n in arguments.clients}
    limits: dict[str, list[float]] = {}
    with ExitStack() as stack:
        engines = {
            backend: stack.enter_context(Engine.open(ModelRepository(path).folder(MODEL)))
            for backend, path in repositories.items()
        }
        cores = usable_cores()
        best = {n: fastest(engines, images, n, seconds) for n in {1, cores}}
        for _ in range(arguments.rounds):
            for clients in arguments.clients:
                callers = 1 if clients == 1 else cores
                engine = engines[best[callers]]
                before = bare_loop(engine, images, callers, seconds)
                load = http_load(port, requests, clients, seconds)
                after = bare_loop(engine, images, callers, seconds)
                limits.setdefault(f"{callers} {best[callers]}", []).extend((before, after))
                loads[clients].append(load)
                ratios[clients].append(load.rate / statistics.mean((before, after)))
    return {
        "bare_images_per_s": {n: round(statistics.median(v), 2) for n, v in limits.items()},
        "http": {
            n: {
                **{
                    key: round(statistics.median(asdict(load)[key] for load in loads[n]), 3)
                    for key in asdict(loads[n][0])
                },
                "rates": [round(load.rate, 2) for load in loads[n]],
                "ratio": round(statistics.median(ratios[n]), 3),
                "ratios": [round(r, 3) for r in ratios[n]],
            }
            for n in arguments.clients
        },
        "server_rss_mb": round(psutil.Process(pid).memory_info().rss / 1e6),
    }


def fastest(
    engines: Mapping[str, Engine], images: Sequence[bytes], callers: int, seconds: float
) -> str:
    """Find the backend whose bare loop is the fastest, of three rounds in turn."""
    total = dict.fromkeys(engines, 0.0)
    for _ in range(3):
        for backend, engine in engines.items():
            total[backend] += bare_loop(engine, images, callers, seconds / 2)
    return max(total, key=lambda backend: total[backend])


def show(report: dict[str, object]) -> None:
    """The figures as a table."""
    http = report["http"]
    assert isinstance(http, dict)
    print(f"\n{report['model']}, {report['engine']}; {report['machine']}; {report['date']}")
    print(f"bare loop, images/s by callers: {report['bare_images_per_s']}")
    print("clients  images/s  ratio to the bare loop      p50 ms   p99 ms  p99/p50  generator CPU")
    for clients, row in http.items():
        spread = f"({min(row['ratios']):.2f}-{max(row['ratios']):.2f})"
        print(
            f"{clients:>7}  {row['rate']:8.1f}  {row['ratio']:.3f} {spread:<20}"
            f"  {row['p50_ms']:7.1f}  {row['p99_ms']:7.1f}  {row['p99_ms'] / row['p50_ms']:7.2f}"
            f"  {row['generator_cpu']:12.1%}"
        )
    print(
        f"start to first answer {report['start_to_first_answer_s']} s; "
        f"server RSS {report['server_rss_mb']} MB; exit code {report['exit_code']}"
    )


if __name__ == "__main__":
    main()
