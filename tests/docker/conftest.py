"""The repository root and the Dockerfile, read once."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The build context."""
    return ROOT
