"""Models to schedule."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.server.scheduling.golden import Served

Serve = Callable[..., Served]


@pytest.fixture
def serve(shared: Path) -> Iterator[Serve]:
    """Opens one of the models; all are closed afterwards."""
    with ExitStack() as exits:

        def opened(name: str | Path, **options: Any) -> Served:
            return Served(shared / "data" / "triton" / "models" / name, exits, **options)

        yield opened
