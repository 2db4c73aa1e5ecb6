"""A million requests of every kind while models come and go: no error, and nothing left behind.

    python benchmarks/soak.py [--requests 1000000] [--images 1] [--models DIR] [--json FILE]

Every answer is looked at. An image costs as much as a hundred tensors: with `--images 75` half of
the requests over HTTP have one. After each sixth of the requests every client hangs up, and the
server is measured: resident memory, file descriptors, threads, /dev/shm. The exit code is 1 if an
answer was wrong, or if one of these has grown since the first sixth; of memory the slope of a line
through all measurements counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import httpx
import psutil
import uvloop
from soak_load import MixedLoad
from soak_requests import REGION, REGION_BYTES, http_requests

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name

DEMO = Path(__file__).parents[1] / "server" / "fovea_server" / "demo"
DEMO_MODEL = "digits"
PARTS = 6
WARM = 3
"""Parts before the first measurement: pools start their threads, and each takes memory once."""
ALLOWED_GROWTH_MB = 16.0
"""Along the line through the memory, from the first measurement to the last."""
ALLOWED_THREADS = 16
"""Pools start their threads one by one, as they are needed."""


@dataclass(frozen=True)
class Footprint:
    """What a server holds while nobody asks it anything."""

    rss_mb: float
    descriptors: int
    threads: int
    shared_memory: tuple[str, ...]

    @classmethod
    def of(cls, server: psutil.Process) -> Footprint:
        """Now."""
        return cls(
            round(server.memory_info().rss / 1e6, 1),
            server.num_fds(),
            server.num_threads(),
            shared_memory(server),
        )

    def growth(self, later: Footprint) -> list[str]:
        """What but memory has grown since, in words."""
        grown = []
        if later.descriptors > self.descriptors:
            grown.append(f"there were {self.descriptors} descriptors, now {later.descriptors}")
        if later.threads > self.threads + ALLOWED_THREADS:
            grown.append(f"there were {self.threads} threads, now {later.threads}")
        if new := set(later.shared_memory) - set(self.shared_memory):
            grown.append(f"it keeps more of /dev/shm: {', '.join(sorted(new))}")
        return grown


def shared_memory(server: psutil.Process) -> tuple[str, ...]:
    """List the regions that a server has open; other programs may have more."""
    paths = (Path(each.path) for each in server.memory_maps())
    return tuple(sorted({path.name for path in paths if path.parent == Path("/dev/shm")}))


def memory_growth(footprints: Sequence[Footprint]) -> list[str]:
    """Whether memory grows all the while, in words."""
    line = statistics.linear_regression(
        range(len(footprints)), [footprint.rss_mb for footprint in footprints]
    )
    growth = line.slope * (len(footprints) - 1)
    if growth <= ALLOWED_GROWTH_MB:
        return []
    return [f"memory has grown by {growth:.1f} MB, from {footprints[0].rss_mb} MB"]


@contextmanager
def serving(models: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Serve copies of the models and the demo model; the server, and its two ports."""
    repository = folder / "models"
    shutil.copytree(models, repository)
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    build(BuildPlan(source=DEMO / "digits.onnx", name=DEMO_MODEL, repository=repository))
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    names = ("--http-port", "--grpc-port", "--metrics-port")
    flags = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    flags += ["--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"]
    flags += ["--cache-config=local,size=1048576", "--log-level=warning"]
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", str(repository), *flags]
    server = subprocess.Popen(command)
    try:
        _wait_until_ready(ports[0])
        yield server, ports[0], ports[1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _wait_until_ready(port: int) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("the server was not ready within 300 s")


@contextmanager
def shared_region(port: int) -> Iterator[None]:
    """The region that requests name: zeros, known to the server."""
    region = SharedMemory(REGION, create=True, size=REGION_BYTES)
    url = f"http://127.0.0.1:{port}/v2/systemsharedmemory"
    described = {"key": f"/{REGION}", "offset": 0, "byte_size": REGION_BYTES}
    httpx.post(f"{url}/region/{REGION}/register", json=described).raise_for_status()
    try:
        yield
    finally:
        httpx.post(f"{url}/unregister").raise_for_status()
        region.close()
        region.unlink()


def soak(models: Path, requests: int, images: int) -> dict[str, object]:
    """Load a server, and say what came of it."""
    footprints, started = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with serving(models, Path(folder)) as (process, http_port, grpc_port):
            server = psutil.Process(process.pid)
            image = (DEMO / "scene-1.jpg").read_bytes()
            adder = (models / "simple" / "1" / "model.onnx").read_bytes()
            mix = http_requests(image, DEMO_MODEL, images)
            load = MixedLoad(http_port, grpc_port, mix, adder)
            for part in range(-WARM, PARTS):
                with shared_region(http_port):
                    uvloop.run(load.run(math.ceil(requests / PARTS)))
                time.sleep(0.5)  # for the server to notice that everybody has left
                if part >= 0:
                    footprints.append(Footprint.of(server))
        code = process.returncode
    errors = load.tally.errors
    faults = errors[:10] + footprints[0].growth(footprints[-1]) + memory_growth(footprints)
    if code != 0:
        faults.append(f"the server ended with exit code {code}")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "requests": dict(load.tally.counts),
        "images": load.tally.images,
        "seconds": round(time.monotonic() - started),
        "wrong_answers": len(errors),
        "footprints": [asdict(each) for each in footprints],
        "faults": faults,
    }


def main() -> None:
    """Soak, print, and fail if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=1, help="how often requests with images come")
    parser.add_argument("--models", type=Path, default=Path("../shared/data/triton/models"))
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    report = soak(arguments.models, arguments.requests, arguments.images)
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    sys.exit(bool(report["faults"]))


if __name__ == "__main__":
    main()
