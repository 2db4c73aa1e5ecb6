"""The v2 protocol as an ASGI application, of an adder and the demo model."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

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


@pytest.fixture(scope="module")
def parts(demo_repository, tmp_path_factory) -> Iterator[App]:
    repository = tmp_path_factory.mktemp("repository")
    adder(repository, "adder", config=ADDER_CONFIG)
    shutil.copytree(demo_repository / "digits", repository / "digits")
    limits = {"http_max_input_size": LIMIT, "max_held_mb": 64}
    app = build_app(Settings(model_repository=repository, **limits))
    app.registry.start()
    with closing(app):
        wait_until(lambda: app.registry.started)
        yield app


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
def runner() -> Iterator[asyncio.Runner]:
    """The one event loop of the service."""
    with asyncio.Runner() as running:
        yield running
