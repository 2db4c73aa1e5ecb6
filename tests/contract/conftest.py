"""The models of the recordings, served by a real server on real ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving import RunningServer, start_server


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
