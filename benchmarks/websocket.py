"""Measures frames over one WebSocket against a POST for each: frames/s, and CPU of both sides.

    python benchmarks/websocket.py [MODEL.onnx] [--rounds 7] [--seconds 3] [--json FILE]

One client of Python has the frames of one camera. It posts each after the answer to the one before,
posts four at a time, or streams with four in flight. The model is by default a network that
computes nothing (overhead.py), so that the ways are all that differs. Each round takes all ways in
turn, and ratios are taken inside a round. The limit of a stream is posting four at a time: it must
not cost more CPU for a frame.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat, takewhile
from pathlib import Path

import onnx
import psutil
from overhead import image, network
from serve import MODEL, start_server
from tables import ratio

from fovea_client import Client
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name

IN_FLIGHT = 4


@dataclass(frozen=True)
class Burst:
    """Frames/s, and milliseconds of CPU for a frame."""

    rate: float
    server_ms: float
    client_ms: float


def posted(client: Client, frames: Iterator[bytes]) -> int:
    """Post each frame after the answer to the one before."""
    return sum(1 for frame in frames if client.predict(MODEL, frame).images)


def posted_ahead(client: Client, frames: Iterator[bytes]) -> int:
    """Post some frames at a time."""
    return sum(1 for _ in client.predict_many(MODEL, frames, in_flight=IN_FLIGHT))


def streamed(client: Client, frames: Iterator[bytes]) -> int:
    """Send all frames over one connection."""
    return sum(1 for _ in client.stream(MODEL, frames, in_flight=IN_FLIGHT))


WAYS: dict[str, Callable[[Client, Iterator[bytes]], int]] = {
    "post": posted,
    "post_ahead": posted_ahead,
    "stream": streamed,
}


def burst(port: int, server: psutil.Process, way: str, frame: bytes, seconds: float) -> Burst:
    """Ask for some seconds, after a first answer."""
    with Client(f"http://127.0.0.1:{port}", timeout=60) as client:
        WAYS[way](client, repeat(frame, 8))
        began, mine, its = time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2])
        until = began + seconds
        frames = takewhile(lambda _: time.perf_counter() < until, repeat(frame))
        count = WAYS[way](client, frames)
        took = time.perf_counter() - began
        cpu = sum(server.cpu_times()[:2]) - its, time.process_time() - mine
    return Burst(count / took, *(1e3 * each / count for each in cpu))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one burst")
    parser.add_argument("--side", type=int, default=640, help="of the frames, pixels")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    frame = image(given.side)
    with tempfile.TemporaryDirectory() as folder:
        source = given.model or Path(folder) / "nothing.onnx"
        if given.model is None:
            onnx.save(network(), source)
        build(BuildPlan(source, MODEL, Path(folder) / "repository", "onnxruntime"))
        server, port, _ = start_server(Path(folder) / "repository", frame)
        try:
            rounds = []
            for index in range(given.rounds):
                order = list(WAYS)[:: -1 if index % 2 else 1]
                process = psutil.Process(server.pid)
                rounds.append({w: burst(port, process, w, frame, given.seconds) for w in order})
        finally:
            server.terminate()
            server.wait(60)
    figures: dict[str, dict[str, float]] = {}
    for way in WAYS:
        own = [each[way] for each in rounds]
        middle = {
            name: round(statistics.median(getattr(each, name) for each in own), 3)
            for name in ("rate", "server_ms", "client_ms")
        }
        figures[way] = middle
        print(
            f"{way:<11} {middle['rate']:7.1f} frames/s; CPU a frame: the server "
            f"{middle['server_ms']:.2f} ms, the client {middle['client_ms']:.2f} ms"
        )
    for other in ("post", "post_ahead"):
        for name in ("rate", "server_ms", "client_ms"):
            ratios = [getattr(r["stream"], name) / getattr(r[other], name) for r in rounds]
            figures.setdefault(f"stream_to_{other}", {})[name] = round(statistics.median(ratios), 3)
            print(f"stream to {other}, {name}: {ratio(ratios)}")
    if given.json is not None:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{processor_name()}, {platform.machine()}",
            # A machine that does other work tells ratios alone.
            "load_average": round(os.getloadavg()[1], 1),
            "rounds": given.rounds,
            "frame_bytes": len(frame),
        }
        given.json.write_text(json.dumps({**about, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
