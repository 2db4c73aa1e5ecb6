"""Models to schedule."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.server.scheduling.served import Served, ServedImages

from fovea_engines.engine import Engine

Serve = Callable[..., Served]


@pytest.fixture
def serve(shared: Path) -> Iterator[Serve]:
    """Opens one of the models; all are closed afterwards."""
    with ExitStack() as exits:

        def opened(name: str | Path, **options: Any) -> Served:
            return Served(shared / "data" / "triton" / "models" / name, exits, **options)

        yield opened


@pytest.fixture(scope="session")
def digits(demo_batches: Path) -> Path:
    """The version folder of an engine that finds digits, up to 4 rows at once."""
    return demo_batches / "digits" / "1"


@pytest.fixture
def serve_images(shared: Path, digits: Path) -> Iterator[Callable[..., ServedImages]]:
    """Opens the digits engine with the queue of one of the models; it is closed afterwards."""
    with ExitStack() as exits:

        def opened(name: str, *, version: Path = digits, **options: Any) -> ServedImages:
            folder = shared / "data" / "triton" / "models" / name
            return ServedImages(Engine.open(version), folder, exits, **options)

        yield opened


@pytest.fixture(params=["tensors", "images"])
def serve_either(request: pytest.FixtureRequest) -> Callable[..., Served | ServedImages]:
    """Opens a model that answers tensors, or one that answers images, with the same queue."""
    name = {"tensors": "serve", "images": "serve_images"}[request.param]
    opened: Callable[..., Served | ServedImages] = request.getfixturevalue(name)
    return opened
