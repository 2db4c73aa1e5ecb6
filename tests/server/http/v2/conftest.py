"""The v2 protocol as an ASGI application, of an adder and the demo model."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.registries import ADDER_CONFIG, adder, serving

import fovea_server
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.settings import Settings
from fovea_server.surface import Surface

DEMO = Path(fovea_server.__file__).parent / "demo"
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def service(demo_repository, tmp_path_factory) -> Iterator[Service]:
    repository = tmp_path_factory.mktemp("repository")
    adder(repository, "adder", config=ADDER_CONFIG)
    shutil.copytree(demo_repository / "digits", repository / "digits")
    limits = {"http_max_input_size": LIMIT, "body_timeout_s": 0.5, "max_held_mb": 64}
    with serving(repository, **limits) as registry:
        yield Service(Settings(model_repository=repository, **limits), registry)


@pytest.fixture(scope="module")
def budget(service) -> ByteBudget:
    return service.budget


@pytest.fixture(scope="module")
def app(service) -> Surface:
    return Surface(service)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The one event loop of the service."""
    with asyncio.Runner() as running:
        yield running
