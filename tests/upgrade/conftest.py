"""HEAD's server on the repository that an older version wrote.

Tests use HEAD only by its command, over HTTP and gRPC, through the client and by files: its modules
may move.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import RunningServer, start_server
from tests.upgrade.camera import run_camera
from tests.upgrade.http_requests import list_requests, send
from tests.upgrade.recording import CAMERA, CLIP, DATA, FLAGS, unpack

Fovea = Callable[..., tuple[int, str, str]]
"""The command: exit code, stdout, stderr."""
Responses = dict[str, Any]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The recorded repository, with a camera and a clip for its streams; not to be written to."""
    with run_camera(DATA / "images" / "digit.jpg") as camera:
        urls = {CLIP: str(DATA / "clip.mp4"), CAMERA: camera}
        yield unpack(tmp_path_factory.mktemp("recorded") / "repository", urls)


@pytest.fixture
def repository(unpacked: Path, tmp_path: Path) -> Path:
    """A copy to write to."""
    return shutil.copytree(unpacked, tmp_path / "repository")


@pytest.fixture(scope="session")
def server(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """HEAD on a copy of the recorded repository and captures, with the flags of the record."""
    folder = tmp_path_factory.mktemp("server")
    copy = shutil.copytree(unpacked, folder / "repository")
    shutil.copytree(DATA / "captures", folder / "captures")
    flags = [*FLAGS, "--capture", str(folder / "captures"), "--capture-days=36500"]
    running = start_server(copy, folder, flags)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def responses(server: RunningServer) -> Responses:
    """HEAD's responses to all requests of the record, sent in its order."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        return {each.name: send(client, each) for each in list_requests(DATA / "images")}
