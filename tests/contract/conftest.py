"""The models of the recordings, served by a real server on real ports."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import make_pair
from tests.contract.wire import Door
from tests.serving import RunningServer, start_server

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"


@pytest.fixture(scope="session")
def recordings(shared) -> Path:
    """Folder with the recorded answers of a real Triton, and the models that gave them."""
    folder = shared / "data" / "triton"
    if not folder.is_dir():
        pytest.skip(f"recorded answers are absent: {folder} is not there")
    return folder


@pytest.fixture(scope="module")
def golden_server(recordings, tmp_path_factory) -> Iterator[RunningServer]:
    """As the recorded Triton ran: explicit control, everything loaded, shared memory allowed."""
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    log = tmp_path_factory.mktemp("golden")
    server = start_server(recordings / "models", log, flags)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="session")
def scene() -> bytes:
    """An image of digits."""
    return (DEMO / "scene-1.jpg").read_bytes()


def _serving(repository: Path, folder: Path, *flags: str) -> Iterator[RunningServer]:
    server = start_server(repository, folder, ("--allow-grpc=false", *flags))
    yield server
    assert server.stop() == 0
    told = server.log.read_text().lower()
    for word in ("traceback", "websocket", "upgrade"):
        assert word not in told


@pytest.fixture(scope="session")
def plain_server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """The demo model over HTTP."""
    yield from _serving(demo_repository, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def tls_server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """The demo model over HTTPS."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = make_pair(folder, "server")
    files = (f"--http-server-cert={certificate}", f"--http-server-key={key}")
    yield from _serving(demo_repository, folder, *files)


@pytest.fixture
def plain_door(plain_server) -> Door:
    return Door(plain_server.port)


@pytest.fixture
def metrics_door(plain_server) -> Door:
    return Door(plain_server.metrics_port)


@pytest.fixture(params=["plain", "tls"])
def door(request) -> Door:
    """Both ways in."""
    server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "plain":
        return Door(server.port)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return Door(server.port, trusting)
