"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real models and images that are not part of the project."""
    if not (SHARED / "models").is_dir():
        pytest.skip(f"real models and images are absent: {SHARED} is not there")
    return SHARED
