"""The page in a real Chromium, against a real server with two versions of the demo model."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.serving import RunningServer, start_server
from tests.system import program

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"
REBOUND = "evil.example"


@pytest.fixture(scope="session")
def page_server(demo_versions, tmp_path_factory) -> Iterator[RunningServer]:
    """Version 2, which answers, runs on OpenVINO, version 1 on ONNX Runtime."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(demo_versions, folder / "repository")
    config = folder / "repository" / "digits" / "config.pbtxt"
    config.write_text("version_policy { all {} }")
    server = start_server(folder / "repository", folder)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, with a camera that sees the first scene.

    Playwright's event loop runs in this thread until it is stopped, and no `asyncio.run` works
    meanwhile: so it is stopped after each file.
    """
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: `make test` installs it"
    )
    # The shell, which Playwright takes for its own browsers, has no window to draw for each page.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = program(*names, package="chromium")
    # A film of one frame: JPEG files one behind the other.
    film = tmp_path_factory.mktemp("film") / "scene.mjpeg"
    film.write_bytes((DEMO / "scene-1.jpg").read_bytes())
    flags = [
        "--no-sandbox",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={film}",
        # The name of an attacker, which he lets lead here: see test_foreign_site.py.
        f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
    ]
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=flags)
        yield running
        running.close()


@contextmanager
def opened(browser, server, width=1300, ready="openvino", **how):
    """The page with a model of this backend chosen; an error in its scripts fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **how)
    page.set_default_timeout(120_000)
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(server.url)
    page.locator(".facts").filter(has_text=ready).wait_for()
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def page(browser, page_server):
    with opened(browser, page_server) as page:
        yield page


@pytest.fixture
def drawn(page):
    """The page with the first scene answered."""
    choose(page, DEMO / "scene-1.jpg")
    return page


def choose(page, *files: Path) -> None:
    """Pick files, and wait for what is found on the last."""
    page.set_input_files("#files", files)
    answered(page)


def answered(page) -> None:
    says(page, "#summary", r"\d")


def says(page, selector: str, pattern: str) -> None:
    """Wait until an element has such a text."""
    found = page.locator(selector).filter(has_text=re.compile(pattern))
    found.wait_for(state="attached")


def until(page, condition: Callable[[], bool]) -> None:
    """Wait, while the browser goes on, until a condition of this process is met."""
    for _ in range(400):
        if condition():
            return
        page.wait_for_timeout(50)
    pytest.fail("it did not happen")


def listed(page) -> list[tuple[str, str]]:
    """Class and score of each row, in order."""
    rows = page.locator("#found .row").all()
    return [(row.locator(".name").inner_text(), row.locator("b").inner_text()) for row in rows]


def pixels(png: bytes) -> np.ndarray:
    """A screenshot as RGB."""
    return cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
