"""Clients of other software, as they are, pointed at a server with their APIs."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.built import build
from tests.serving import RunningServer, free_ports, start_server

from fovea_engines.build.plan import BuildPlan

PACKAGES = Path(sys.prefix) / "apis" / "site-packages"
MODELS = ("yolov8n", "yolov8n-seg-320", "yolov8n-pose", "heads/yolo11-cls", "heads/yolo11-obb")
FLAGS = (
    "--api=deepstack=yolov8n",
    "--api=roboflow",
    "--api=label-studio",
    "--api=frigate-zmq",
    "--allow-url",
    "--url-allow-host=127.0.0.1",
)

Run = Callable[[str, Any], Any]
Found = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def api_repository(shared, tmp_path_factory) -> Path:
    """A repository with a model of each task that the APIs have answers for."""
    repository, image = tmp_path_factory.mktemp("apis") / "models", tmp_path_factory.mktemp("image")
    (image / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    for name in MODELS:
        source = shared / "models" / f"{name}.onnx"
        build(BuildPlan(source, source.stem, repository, "onnxruntime", images=image))
    return repository


@pytest.fixture(scope="session")
def frigate_address() -> str:
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="session")
def server(api_repository, frigate_address, tmp_path_factory) -> Iterator[RunningServer]:
    flags = (*FLAGS, f"--frigate-address={frigate_address}")
    server = start_server(api_repository, tmp_path_factory.mktemp("log"), flags)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def frigate_plugins(shared) -> Path:
    """The folder of Frigate's detector plugins."""
    folder = shared / "data" / "clients" / "frigate"
    if not folder.exists():
        pytest.skip(f"{folder} is absent")
    return folder


@pytest.fixture(scope="session")
def images(shared) -> list[Path]:
    """Some photographs."""
    coco = sorted((shared / "data" / "coco64" / "val").glob("*.jpg"))
    return [shared / "data" / "bus.jpg", *coco[:2]]


@pytest.fixture(scope="session")
def found(server) -> Found:
    """Ask /v1 what is on an image."""

    def ask(model: str, image: bytes, **options: object) -> dict[str, Any]:
        answer = httpx.post(server.predict_url(model), content=image, params=options, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["images"][0]

    return ask


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Run a program of this folder with the clients' packages: JSON in, JSON out.

    Their imports take seconds, so a program is started once and reads a line for each call.
    """
    if not PACKAGES.exists():
        pytest.skip(f"{PACKAGES} is absent: `make test-real` installs it")
    programs: dict[str, subprocess.Popen[str]] = {}

    def run(name: str, given: Any) -> Any:
        if name not in programs:
            programs[name] = subprocess.Popen(
                [sys.executable, "-W", "ignore", Path(__file__).with_name(name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={"PYTHONPATH": str(PACKAGES)},
            )
        program = programs[name]
        program.stdin.write(f"{json.dumps(given)}\n")
        program.stdin.flush()
        answer = program.stdout.readline()
        assert answer, f"{name} ended: {program.wait()}"
        return json.loads(answer)

    yield run
    for program in programs.values():
        program.communicate(timeout=60)


@pytest.fixture(scope="session")
def inline(images) -> str:
    """bus.jpg as an address that holds it."""
    data = base64.b64encode(images[0].read_bytes()).decode()
    return f"data:image/jpeg;base64,{data}"
