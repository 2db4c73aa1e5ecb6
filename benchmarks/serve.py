"""Images/s over HTTP as a ratio to the bare loop of the same engine, measured in turn.

    python benchmarks/serve.py MODEL.onnx [--images DIR] [--rounds 5] [--json FILE]

The bare loop decodes, letterboxes, infers, decodes the head, suppresses and maps back, with no
server: with one caller that may use every core (the limit for a lone client), and with a caller a
core (the limit under load). Each HTTP figure is divided by the mean of the limits measured right
before and right after it, so that a noisy machine cancels out; medians over the rounds are shown.
The load generator shares the machine; its own CPU share is stated.
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
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
from http_load import Loaded, http_load

from fovea_engines.detect.options import PredictOptions
from fovea_engines.device import processor_name
from fovea_engines.engine import Engine
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.image import decode_image
from fovea_server.bench.requests import image_requests

MODEL = "bench"


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
            back.boxes_to_source(head.decode(outputs, 0, options).boxes)
            done[caller] += 1

    threads = [threading.Thread(target=call, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def start_server(repository: Path, image: bytes) -> tuple[subprocess.Popen[bytes], int, float]:
    """Start `fovea serve`; returns it, its port and the seconds until its first answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = time.perf_counter()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fovea_server.commands.cli",
            "serve",
            str(repository),
            "--port",
            str(port),
        ]
    )
    head = f"POST /v1/models/{MODEL}/predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
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
    raise SystemExit("the server did not answer within 60 s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, default=Path("../shared/data/coco64/val"))
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    images = [p.read_bytes() for p in sorted(arguments.images.glob("*.jpg"))]
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "fovea_server.commands.cli",
                "build",
                str(arguments.model),
                "--name",
                MODEL,
                "--repository",
                folder,
                "--backend",
                arguments.backend,
            ],
            check=True,
        )
        server, port, first_answer_s = start_server(repository, images[0])
        try:
            report = measure(repository, port, server.pid, images, arguments)
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
    report |= {
        "model": arguments.model.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "start_to_first_answer_s": round(first_answer_s, 2),
        "exit_code": code,
    }
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(
    repository: Path, port: int, pid: int, images: Sequence[bytes], arguments: argparse.Namespace
) -> dict[str, object]:
    """Rounds of limit, load, limit."""
    seconds = arguments.seconds
    requests = image_requests(f"http://127.0.0.1:{port}", MODEL, None, images)
    loads: dict[int, list[Loaded]] = {n: [] for n in arguments.clients}
    ratios: dict[int, list[float]] = {n: [] for n in arguments.clients}
    limits: dict[int, list[float]] = {}
    with Engine.open(ModelRepository(repository).folder(MODEL)) as engine:
        cores = engine.session.concurrency
        for _ in range(arguments.rounds):
            for clients in arguments.clients:
                callers = 1 if clients == 1 else cores
                before = bare_loop(engine, images, callers, seconds)
                load = http_load(port, requests, clients, seconds)
                after = bare_loop(engine, images, callers, seconds)
                limits.setdefault(callers, []).extend((before, after))
                loads[clients].append(load)
                ratios[clients].append(load.rate / statistics.mean((before, after)))
        backend = f"{engine.card.backend} {engine.card.backend_version}"
    return {
        "backend": backend,
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


def show(report: dict[str, object]) -> None:
    """The figures as a table."""
    http = report["http"]
    assert isinstance(http, dict)
    print(f"\n{report['model']} on {report['backend']}; {report['machine']}; {report['date']}")
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
