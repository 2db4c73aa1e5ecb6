"""Clients of Triton and of Fovea at a real server with the models that a real Triton served."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.serving import RunningServer, start_server

FLAGS = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--allow-client-shm=true",
    "--cache-config=local,size=1048576",
    "--metrics-interval-ms=100",
)
NEVER_TOUCHED = "never_touched"
"""A copy of `simple` that no test infers with, loads or unloads."""
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)


@pytest.fixture(scope="session")
def triton_models(shared: Path) -> Path:
    """The models of the recordings."""
    return shared / "data" / "triton" / "models"


@pytest.fixture(scope="session")
def repository(triton_models: Path, tmp_path_factory) -> Path:
    """Writable copies of the models."""
    repository = tmp_path_factory.mktemp("triton") / "models"
    shutil.copytree(triton_models, repository)
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copytree(repository / "simple", repository / NEVER_TOUCHED)
    config = repository / NEVER_TOUCHED / "config.pbtxt"
    config.write_text(config.read_text().replace('"simple"', f'"{NEVER_TOUCHED}"'))
    return repository


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory) -> Iterator[RunningServer]:
    """One server for all tests here: each test undoes its changes."""
    server = start_server(repository, tmp_path_factory.mktemp("log"), FLAGS)
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["http", "grpc"])
def protocol(request) -> ModuleType:
    """The client's module: `tritonclient.http` or `tritonclient.grpc`."""
    return {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]


@pytest.fixture
def client(server: RunningServer, protocol: ModuleType) -> Iterator[Any]:
    with protocol.InferenceServerClient(address(server, protocol)) as client:
        yield client


def address(server: RunningServer, protocol: ModuleType) -> str:
    """host:port of the protocol."""
    port = server.grpc_port if "grpc" in protocol.__name__ else server.port
    return f"127.0.0.1:{port}"


def make_input(
    protocol: ModuleType, name: str, array: np.ndarray, datatype: str = "INT32", **options: Any
) -> Any:
    tensor = protocol.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **options)
    return tensor


def make_pair(
    protocol: ModuleType, first: np.ndarray = FIRST, second: np.ndarray = ONES, **options: Any
) -> Any:
    """Make the two inputs of `simple` and similar models."""
    return [
        make_input(protocol, "INPUT0", first, **options),
        make_input(protocol, "INPUT1", second, **options),
    ]


def check_sums(result: Any, first: np.ndarray = FIRST, second: np.ndarray = ONES) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)
