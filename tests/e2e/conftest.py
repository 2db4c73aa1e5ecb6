"""A real server: the `fovea` command, a process of its own, a real port."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.built import build
from tests.serving import RunningServer, start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"


@pytest.fixture(scope="module")
def detector_repository(request, shared, tmp_path_factory) -> Path:
    """A repository with the real detectors that the module names as `DETECTORS`."""
    repository = tmp_path_factory.mktemp("detectors") / "repository"
    truth = json.loads((shared / "data" / "coco64" / "val.json").read_text())
    labels = tuple(category["name"] for category in truth["categories"])
    for name in request.module.DETECTORS:
        build(
            BuildPlan(
                source=shared / "models" / f"{name}.onnx",
                name=name,
                repository=repository,
                labels=labels,
            )
        )
    return repository


@pytest.fixture(scope="module")
def detector_server(detector_repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = start_server(detector_repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server of the repository of the module."""
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server) -> Iterator[Client]:
    with Client(server.url, timeout=120) as asking:
        yield asking


@pytest.fixture(scope="session")
def second_scene() -> bytes:
    """Another one."""
    return (DEMO / "scene-2.jpg").read_bytes()


@pytest.fixture(scope="session")
def demo_truth() -> dict[str, list[dict[str, object]]]:
    """What is in the scenes."""
    return json.loads((DEMO / "scenes.json").read_text())


def images(protocol, *encoded: bytes, name: str):
    """Make a tensor of encoded images for tritonclient."""
    tensor = protocol.InferInput(name, [len(encoded)], "BYTES")
    tensor.set_data_from_numpy(np.array(encoded, object))
    return [tensor]
