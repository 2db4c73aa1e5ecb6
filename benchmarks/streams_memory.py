"""Memory of streams: switched on and off again and again, or steady for a while.

    python benchmarks/streams_memory.py [MODEL.onnx] [--cycles 60] [--minutes 0] [--json FILE]

Each cycle begins all streams over HTTP, waits for two answers of each, ends them, and measures the
server: resident memory, threads, file descriptors, series of the metrics, files of the repository.
With `--minutes` the streams run on behind the cycles, and each minute is measured. The first cycles
fill heaps and pools once: `mb_a_start` is of a line through the later half.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from serve import MODEL, free_ports
from streams import SHARED, SWITCHES, running_cameras, streams_of

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name

ANSWERS = 2
PATIENCE_S = 300
"""A machine that is busy otherwise is slow, and its memory counts all the same."""


class Server:
    """A running server, and what it holds."""

    def __init__(self, repository: Path) -> None:
        port, grpc_port, self._metrics_port = free_ports(3)
        ports = (port, grpc_port, self._metrics_port)
        names = ("--port", "--grpc-port", "--metrics-port")
        flags = [f"{name}={number}" for name, number in zip(names, ports, strict=True)]
        command = [sys.executable, "-m", "fovea_server.cli.main", "serve", str(repository)]
        environment = os.environ | SWITCHES
        self.process = subprocess.Popen([*command, *flags], env=environment)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        self._repository, self._of = repository, psutil.Process(self.process.pid)

    def is_ready(self) -> bool:
        """Ask it."""
        with suppress(httpx.TransportError):
            return self.client.get("/v2/health/ready").status_code == 200
        return False

    def have_answered(self) -> bool:
        """Whether each stream has enough answers."""
        return all(each["frames"]["answered"] >= ANSWERS for each in streams_of(self.client))

    def switch(self, count: int, *, enabled: bool) -> None:
        """Begin or end all streams."""
        for number in range(count):
            change = {"enabled": enabled}
            self.client.patch(f"/v1/streams/s{number}", json=change).raise_for_status()

    def now(self) -> dict[str, float]:
        """Measure it."""
        metrics = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=PATIENCE_S)
        return {
            "rss_mb": round(self._of.memory_info().rss / 1e6, 1),
            "threads": self._of.num_threads(),
            "descriptors": self._of.num_fds(),
            "series": sum(not each.startswith("#") for each in metrics.text.splitlines()),
            "files": sum(1 for _ in self._repository.rglob("*")),
        }


@contextmanager
def serving(repository: Path) -> Iterator[Server]:
    """Run a server until the block ends."""
    server = Server(repository)
    try:
        wait_for(server.is_ready)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(PATIENCE_S)


def wait_for(there: Any) -> None:
    """Wait for a condition."""
    until = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > until:
            raise SystemExit(f"waited {PATIENCE_S} s in vain for {there.__name__}")
        time.sleep(0.1)


def measure(arguments: argparse.Namespace, server: Server, camera_port: int) -> dict[str, Any]:
    """Cycles, and minutes behind them."""
    for number in range(arguments.streams):
        given = {
            "id": f"s{number}",
            "source": f"http://127.0.0.1:{camera_port}/{number}",
            "model": MODEL,
            "track": "bytetrack",
            "enabled": False,
        }
        server.client.post("/v1/streams", json=given).raise_for_status()
    cycles, minutes = [], []
    for number in range(arguments.cycles):
        server.switch(arguments.streams, enabled=True)
        wait_for(server.have_answered)
        server.switch(arguments.streams, enabled=False)
        # Their threads end.
        time.sleep(0.5)
        cycles.append(server.now())
        print(f"cycle {number + 1}:", cycles[-1], flush=True)
    if arguments.minutes:
        server.switch(arguments.streams, enabled=True)
        wait_for(server.have_answered)
        for number in range(arguments.minutes + 1):
            minutes.append(server.now())
            minutes[-1]["answered"] = sum(
                each["frames"]["answered"] for each in streams_of(server.client)
            )
            print(f"minute {number}:", minutes[-1], flush=True)
            if number < arguments.minutes:
                time.sleep(60)
    return {"cycles": cycles, "minutes": minutes}


def mb_a_start(cycles: list[dict[str, float]], streams: int) -> float | None:
    """Return how much a start leaves behind, by a line through the later half of the cycles."""
    later = [each["rss_mb"] for each in cycles[len(cycles) // 2 :]]
    if len(later) < 2:
        return None
    return round(statistics.linear_regression(range(len(later)), later).slope / streams, 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = SHARED / "models" / "yolox_nano.onnx"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--images", type=Path, default=SHARED / "data" / "coco64" / "val")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--fps", type=float, default=5.0, help="frames/s of each camera")
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--minutes", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    images = [path.read_bytes() for path in sorted(arguments.images.glob("*.jpg"))]
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        build(BuildPlan(arguments.model, MODEL, repository))
        with running_cameras(images, arguments.fps) as port, serving(repository) as server:
            report = measure(arguments, server, port)
    leaves = mb_a_start(report["cycles"], arguments.streams)
    print(f"mb_a_start {leaves}")
    if arguments.json:
        about = {
            "model": arguments.model.name,
            "streams": arguments.streams,
            "fps": arguments.fps,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores",
        }
        text = json.dumps({**about, "mb_a_start": leaves, **report}, indent=1)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
