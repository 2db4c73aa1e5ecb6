"""The stub libraries, compiled once."""

from pathlib import Path

import pytest
from tests.engines.backends.tensorrt.api_surface.surface import compile_stubs


@pytest.fixture(scope="session")
def stubs(tmp_path_factory) -> Path:
    """A folder with the stubs of TensorRT's libraries."""
    folder = tmp_path_factory.mktemp("stubs")
    compile_stubs(folder)
    return folder
