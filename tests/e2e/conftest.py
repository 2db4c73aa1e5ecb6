"""A real server: the `fovea` command, a process of its own, a real port."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from fovea_engines.build import build
from fovea_engines.plan import BuildPlan

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"
DETECTORS = ("yolov8n", "yolov5n", "yolov10n", "yolox_nano")


@dataclass
class RunningServer:
    process: subprocess.Popen[str]
    port: int
    log: Path
    grpc_port: int = 0
    metrics_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def predict_url(self, model: str) -> str:
        return f"{self.url}/v1/models/{model}/predict"

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


Serve = Callable[..., RunningServer]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, all different."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _start(repository: Path, folder: Path, *flags: str, wait: bool = True) -> RunningServer:
    port, grpc_port, metrics_port = free_ports(3)
    log = folder / f"serve-{port}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fovea_server.cli",
                "serve",
                str(repository),
                "--port",
                str(port),
                "--grpc-port",
                str(grpc_port),
                "--metrics-port",
                str(metrics_port),
                *flags,
            ],
            stderr=stream,
            text=True,
        )
    server = RunningServer(process, port, log, grpc_port, metrics_port)
    until = time.monotonic() + 60
    path = "/v2/health/ready" if wait else "/v2/health/live"
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(server.url + path).status_code == 200:
                return server
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"the server did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The ONNX file of the demo model, which every machine has."""
    return DEMO / "digits.onnx"


@pytest.fixture(scope="session")
def demo_repository(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo engine."""
    repository = tmp_path_factory.mktemp("demo") / "repository"
    build(BuildPlan(source=demo_model, name="digits", repository=repository))
    return repository


@pytest.fixture(scope="session")
def detector_repository(shared, tmp_path_factory) -> Path:
    """A repository with the four real detectors."""
    repository = tmp_path_factory.mktemp("detectors") / "repository"
    truth = json.loads((shared / "data" / "coco64" / "val.json").read_text())
    labels = tuple(category["name"] for category in truth["categories"])
    for name in DETECTORS:
        build(
            BuildPlan(
                source=shared / "models" / f"{name}.onnx",
                name=name,
                repository=repository,
                labels=labels,
            )
        )
    return repository


@pytest.fixture(scope="session")
def demo_server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = _start(demo_repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def detector_server(detector_repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = _start(detector_repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def serve(tmp_path) -> Iterator[Serve]:
    """Start servers with flags of your own; what still runs is stopped after the test."""
    started: list[RunningServer] = []

    def start(repository: Path, *flags: str, wait: bool = True) -> RunningServer:
        started.append(_start(repository, tmp_path, *flags, wait=wait))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def scene() -> bytes:
    """A picture of digits."""
    return (DEMO / "scene-1.jpg").read_bytes()


@pytest.fixture(scope="session")
def second_scene() -> bytes:
    """Another one."""
    return (DEMO / "scene-2.jpg").read_bytes()


@pytest.fixture(scope="session")
def demo_truth() -> dict[str, list[dict[str, object]]]:
    """What is in the scenes."""
    return json.loads((DEMO / "scenes.json").read_text())
