"""The application of a server with an adder and the demo model, which is asked without a socket;
and a transport of connections that goes nowhere.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp
from tests.server.registries import ADDER_CONFIG, adder, wait_until

import fovea_server
from fovea_server.app import App, build_app
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.http.application import create_application
from fovea_server.settings import Settings

DEMO = Path(fovea_server.__file__).parent / "demo"
LIMIT = 1 << 20

Ask = Callable[..., httpx.Response]


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: object) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.fixture
def anyio_backend() -> str:
    """The event loops of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The one event loop of all."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def open_app(demo_repository, tmp_path_factory) -> Iterator[Callable[..., App]]:
    """Make the objects of a server with these settings; its models are ready."""
    repository = tmp_path_factory.mktemp("repository")
    adder(repository, "adder", config=ADDER_CONFIG)
    shutil.copytree(demo_repository / "digits", repository / "digits")
    with ExitStack() as stack:

        def open_(**settings: object) -> App:
            app = build_app(Settings(model_repository=[repository], max_inflight_mb=64, **settings))
            app.registry.start()
            stack.enter_context(closing(app))
            wait_until(lambda: app.registry.started)
            return app

        yield open_


@pytest.fixture(scope="module")
def asking(open_app, runner) -> Iterator[Callable[..., Ask]]:
    """What `ask` is, for a server with settings of its own."""
    with ExitStack() as stack:

        def asked(**settings: object) -> Ask:
            client = client_of(create_application(open_app(**settings)))
            stack.callback(lambda: runner.run(client.aclose()))
            return lambda *args, **kwargs: runner.run(client.request(*args, **kwargs))

        yield asked


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture(scope="module")
def parts(open_app) -> App:
    return open_app(http_max_input_size=LIMIT)


@pytest.fixture(scope="module")
def service(parts) -> Service:
    return parts.service


@pytest.fixture(scope="module")
def budget(service) -> ByteBudget:
    return service.budget


@pytest.fixture(scope="module")
def app(parts) -> ASGIApp:
    return create_application(parts)


@pytest.fixture(scope="module")
def ask(app, runner) -> Iterator[Ask]:
    """Send a request, and return its answer."""
    client = client_of(app)
    yield lambda *args, **kwargs: runner.run(client.request(*args, **kwargs))
    runner.run(client.aclose())


@pytest.fixture(scope="session")
def second_scene() -> bytes:
    """Another one."""
    return (DEMO / "scene-2.jpg").read_bytes()
