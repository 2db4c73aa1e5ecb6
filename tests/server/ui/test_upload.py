"""The page sends a large image over a slow line: it shows progress, or why it failed."""

import re
import threading

import cv2
import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serving import start_server

from .conftest import DEMO, answered, asked, choose, listed, opened, says, told

pytestmark = pytest.mark.browser

KB = 1000


class Line:
    """The line between a page and the network."""

    def __init__(self, page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Network.enable")

    def limit(self, upload: int) -> None:
        """Let so many bytes a second through; -1 for all."""
        limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": upload}
        self._session.send("Network.emulateNetworkConditions", {"offline": False, **limits})


@pytest.fixture
def noise(tmp_path):
    """A file of half a megabyte, in pixels that no model would have smaller."""
    file = tmp_path / "noise.png"
    cv2.imwrite(str(file), np.random.default_rng(1).integers(0, 256, (400, 440, 3), np.uint8))
    return file


def test_a_slow_upload_tells_how_far_it_is_and_can_be_given_up(page, page_server, noise):
    line = Line(page)
    line.limit(100 * KB)
    page.set_input_files("#files", noise)
    says(page, ".sending", r"^Sending 5\d\d kB: [1-9]\d? %")
    share = page.locator(".sending progress").evaluate("(bar) => bar.value")
    assert 0 < share < 1
    page.click(".cancel")
    says(page, ".pane .problem", "^Cancelled")
    assert not page.locator(".sending").is_visible()
    line.limit(-1)
    page.click(".again")
    says(page, "#summary", r"Nothing found|\d")
    assert not page.locator(".pane .problem").is_visible()
    # A line that goes down tells nobody: a browser would wait for ever.
    page.click("#remove")
    page.clock.install()
    line.limit(1)
    page.set_input_files("#files", noise)
    says(page, ".sending", "^Sending")
    page.clock.fast_forward(31_000)
    says(page, ".pane .problem", "^Nothing could be sent")
    line.limit(-1)
    page.click(".again")
    says(page, "#summary", r"Nothing found|\d")


def test_one_that_the_server_gives_up_ends_with_the_reason(browser, demo_repository, tmp_path):
    """Chromium sends a body again where the status is 408, and the page would never hear of it."""
    server = start_server(demo_repository, tmp_path, ("--body-timeout-s=0.5",))
    with opened(browser, server, ready="onnxruntime") as page:
        line = Line(page)
        line.limit(7 * KB)
        page.set_input_files("#files", DEMO / "scene-1.jpg")
        says(
            page,
            ".pane .problem",
            "did not arrive within 0.5 s, and was slower than 8 KiB/s: send less",
        )
        line.limit(-1)
        page.click(".again")
        answered(page)
        # A server that goes away meanwhile.
        line.limit(40 * KB)
        page.set_input_files("#files", DEMO / "scene-2.jpg")
        says(page, ".sending", r"^Sending 56 kB: [1-9]\d? %")
        threading.Thread(target=server.process.kill).start()
        says(page, ".pane .problem", "does not respond")
        assert not page.locator(".sending").is_visible()
    server.process.wait()


SHRUNK = r"^Sent at (\d+) . (\d+): [\d.]+ kB instead of [\d.]+ [kM]B$"


def test_a_large_image_is_sent_smaller_and_found_in_the_original(page, page_server, tmp_path):
    """A photograph of 12 megapixels, as telephones store those that are held upright."""
    file, tags = tmp_path / "photograph.jpg", Image.Exif()
    tags[0x0112] = 6
    scene = Image.open(DEMO / "scene-1.jpg").resize((4032, 2822), Image.Resampling.LANCZOS)
    scene.rotate(90, expand=True).save(file, quality=92, exif=tags)
    choose(page, file)
    size = re.match(SHRUNK, page.inner_text(".smaller"))
    about = httpx.get(f"{page_server.url}/v1/models/digits").json()["preprocess"]
    assert int(size[1]) == 2 * about["width"]
    assert int(size[1]) / int(size[2]) == pytest.approx(4032 / 2822, rel=0.01)
    page.get_by_label("Answer").check(force=True)
    shown = httpx.Response(200, text=page.inner_text("#code")).json()
    assert (shown["width"], shown["height"]) == (4032, 2822)
    original = asked(page_server, file)
    both = [sure(found) for found in (shown["detections"], original)]
    assert len(both[0]) == len(both[1]) > 5
    for each, other in zip(*both, strict=True):
        assert each["class_name"] == other["class_name"]
        assert each["score"] == pytest.approx(other["score"], abs=0.1)
        assert list(each["box"].values()) == pytest.approx(list(other["box"].values()), abs=40)
    # As it is, where the user wants that.
    page.get_by_label("Shrink large images").uncheck()
    page.locator(".smaller").wait_for(state="hidden")
    answered(page)
    assert listed(page) == told(original)
    # Tiles are cut from the original.
    page.get_by_label("Shrink large images").check()
    page.locator(".smaller").wait_for()
    page.fill("#tile", "2x2")
    page.locator("#tile").blur()
    page.locator(".smaller").wait_for(state="hidden")
    says(page, "#note", "^$")
    # JPEG has no transparency.
    scene = Image.open(DEMO / "scene-1.jpg").resize((2400, 1680)).convert("RGBA")
    scene.save(tmp_path / "opaque.png")
    scene.putpixel((3, 3), (0, 0, 0, 0))
    scene.save(tmp_path / "scene.png")
    page.fill("#tile", "")
    page.locator("#tile").blur()
    for name, smaller in (("scene.png", False), ("opaque.png", True)):
        choose(page, tmp_path / name)
        page.locator(f".view img[alt^='{name}']").wait_for()
        answered(page)
        assert page.locator(".smaller").is_visible() == smaller


def sure(detections):
    """Those that are no matter of a few grey levels, from left to right."""
    certain = [each for each in detections if each["score"] > 0.6]
    return sorted(certain, key=lambda each: each["box"]["x1"])
