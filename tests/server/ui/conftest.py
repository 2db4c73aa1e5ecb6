"""The page in a real Chromium, against a real server with two versions of the demo model; and its
modules in Node.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from tests.conftest import DEMO, ROOT
from tests.serving import RunningServer, start_server
from tests.system import program, skip_for_want_of

REBOUND = "evil.example"
UI, TESTS = Path("server/fovea_server/ui"), Path("tests/server/ui")


class Node:
    """Node, and a copy of the page's modules that it takes for such."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self._folder = binary, folder
        (folder / "package.json").write_text('{"type": "module"}')
        for place, pattern in ((UI, "*.js"), (TESTS, "*.test.js")):
            (folder / place).mkdir(parents=True)
            for file in (ROOT / place).glob(pattern):
                shutil.copy(file, folder / place)

    def test(self, file: str, environment: Mapping[str, str] | None = None) -> None:
        """Run a file of tests; what Node prints names those that fail."""
        # Before version 22 it has WebSockets as an experiment.
        flag = "--experimental-websocket"
        known = f"console.log(process.allowedNodeEnvironmentFlags.has('{flag}'))"
        flags = [flag] if self._run("-e", known).stdout == "true\n" else []
        done = self._run(*flags, str(TESTS / file), environment=environment)
        failed = re.findall(r"^(?:not ok \d+ - |✖ )(.+)$", done.stdout, re.MULTILINE)
        assert (done.returncode, failed) == (0, []), done.stdout + done.stderr

    def evaluate(self, code: str, given: object = None) -> object:
        """The value of an expression, or what it resolves to, with imports from the page's folder
        and `given`.
        """
        script = (
            "import { readFileSync } from 'node:fs'; const given = JSON.parse(readFileSync(0));"
            f"console.log(JSON.stringify(await ({code})));"
        )
        command = ("--input-type=module", "--eval", script)
        done = self._run(*command, folder=UI, given=json.dumps(given))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _run(
        self,
        *arguments: str,
        folder: Path = Path(),
        given: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *arguments],
            cwd=self._folder / folder,
            input=given,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="session")
def node(tmp_path_factory) -> Node:
    """Node; without one that has a runner of tests the test skips."""
    binary = program("node", package="nodejs")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 18:
        skip_for_want_of("nodejs", f"Node {version.strip()} is older than 18")
    return Node(binary, tmp_path_factory.mktemp("node"))


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
        # The name of an attacker, which he lets lead here: see test_sites.py.
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


def check_access(page) -> None:
    """Fail where axe-core finds something wrong with the page as it is now."""
    package = pytest.importorskip(
        "axe_playwright_python",
        reason="axe-playwright-python is not installed: `make test` installs it",
    )
    page.evaluate((files(package) / "axe.min.js").read_text())
    result = page.evaluate("axe.run()")
    assert [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]] == []
    assert len(result["passes"]) > 30


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


def asked(server, image=DEMO / "scene-1.jpg", **options) -> list[dict]:
    """The detections that the server answers with."""
    answer = httpx.post(server.predict_url("digits"), content=image.read_bytes(), params=options)
    return answer.json()["images"][0]["detections"]


def told(detections) -> list[tuple[str, str]]:
    """Class and score of detections, as `listed` has them."""
    return [(each["class_name"], f"{each['score']:.2f}") for each in detections]


def slide(page, name: str, value: float, *, let_go: bool = False) -> None:
    page.locator(f"#{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }",
        value,
    )
    if let_go:
        page.locator(f"#{name}").dispatch_event("change")


def pixels(png: bytes) -> np.ndarray:
    """A screenshot as RGB."""
    return cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
