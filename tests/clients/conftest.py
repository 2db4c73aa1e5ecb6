"""Triton's own clients, pointed at a real server over the models that a real Triton served."""

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


@pytest.fixture(scope="session")
def triton_models(shared: Path) -> Path:
    """The models of the recordings."""
    return shared / "data" / "triton" / "models"


@pytest.fixture(scope="session")
def repository(triton_models: Path, tmp_path_factory) -> Path:
    """Copies of the models, to be changed at will."""
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
    """One server for all tests here: what a test changes, it changes back."""
    server = start_server(repository, tmp_path_factory.mktemp("log"), FLAGS)
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["http", "grpc"])
def protocol(request) -> ModuleType:
    """The client's module: `tritonclient.http` or `tritonclient.grpc`."""
    return {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]


def address(server: RunningServer, protocol: ModuleType) -> str:
    """host:port of the protocol."""
    port = server.grpc_port if "grpc" in protocol.__name__ else server.port
    return f"127.0.0.1:{port}"


@pytest.fixture
def client(server: RunningServer, protocol: ModuleType) -> Iterator[Any]:
    """A client of either protocol."""
    with protocol.InferenceServerClient(address(server, protocol)) as client:
        yield client


@pytest.fixture
def grpc_client(server: RunningServer) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    """A client over gRPC, for what only gRPC has."""
    with tritonclient.grpc.InferenceServerClient(address(server, tritonclient.grpc)) as client:
        yield client


@pytest.fixture
def http_client(server: RunningServer) -> Iterator[tritonclient.http.InferenceServerClient]:
    """A client over HTTP, for what only HTTP has."""
    with tritonclient.http.InferenceServerClient(address(server, tritonclient.http)) as client:
        yield client


def make_input(
    protocol: ModuleType, name: str, array: np.ndarray, datatype: str, **given: Any
) -> Any:
    """An input tensor that carries an array."""
    tensor = protocol.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **given)
    return tensor


def make_pair(protocol: ModuleType, first: np.ndarray, second: np.ndarray, **given: Any) -> Any:
    """The two inputs of `simple` and its kin."""
    return [
        make_input(protocol, "INPUT0", first, "INT32", **given),
        make_input(protocol, "INPUT1", second, "INT32", **given),
    ]
