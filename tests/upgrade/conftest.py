"""HEAD's servers on what an older version wrote, and the addresses that they take.

Tests reach HEAD by its command, over HTTP and gRPC, by the client and by files alone, so that they
hold however its modules are moved.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import RunningServer, start_server
from tests.upgrade.asked import Asked, ask, requests
from tests.upgrade.camera import camera
from tests.upgrade.recorded import CAMERA, CLIP, DATA, FLAGS, unpack

Fovea = Callable[..., tuple[int, str, str]]
"""The command: exit code, stdout, stderr."""
Answers = dict[str, Any]


@pytest.fixture(scope="session")
def camera_address() -> Iterator[str]:
    """A camera, as the recorded stream has one."""
    with camera(DATA / "images" / "digit.jpg") as address:
        yield address


@pytest.fixture(scope="session")
def places(camera_address: str) -> dict[str, str]:
    return {CLIP: str(DATA / "clip.mp4"), CAMERA: camera_address}


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory, places: dict[str, str]) -> Path:
    """The recorded repository; not to be written to."""
    return unpack(tmp_path_factory.mktemp("recorded") / "repository", places)


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
    # Intended: the camera is on this machine, which an operator has to name since.
    named = "--url-allow-host=127.0.0.1"
    flags = [*FLAGS, named, "--capture", str(folder / "captures"), "--capture-days=36500"]
    running = start_server(copy, folder, flags)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def answers(server: RunningServer) -> Answers:
    """HEAD's answers to all requests of the record, which are sent in its order."""
    asked: list[Asked] = requests(DATA / "images")
    with httpx.Client(base_url=server.url, timeout=120) as client:
        return {each.name: ask(client, each) for each in asked}
