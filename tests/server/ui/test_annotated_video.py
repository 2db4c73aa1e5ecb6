"""Annotated videos play in a browser."""

import cv2
import pytest
from tests.conftest import DEMO

from fovea_server.offline import encoding

pytestmark = pytest.mark.browser

SHOWN = "document.querySelector('video')?.readyState >= HTMLMediaElement.HAVE_CURRENT_DATA"


@pytest.mark.parametrize("codec", ["h264", "vp9", "vp9 without PyAV"])
def test_browsers_play_it(browser, fovea, demo_repository, tmp_path, monkeypatch, codec):
    if codec == "vp9 without PyAV":
        monkeypatch.setattr(encoding, "find_spec", lambda name: None)
    motion_jpeg = cv2.VideoWriter.fourcc(*"MJPG")
    clip = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.CAP_FFMPEG, motion_jpeg, 30, (320, 240))
    scene = cv2.resize(cv2.imread(str(DEMO / "scene-1.jpg")), (320, 240))
    for _ in range(6):
        clip.write(scene)
    clip.release()
    code, _, err = fovea(
        "predict", "digits", "clip.avi", "--repository", demo_repository, "--out", "out",
        "--codec", codec.split()[0],
    )  # fmt: skip
    assert code == 0, err
    assert ("encodes VP9 slowly" in err) == (codec == "vp9 without PyAV")
    page = browser.new_page()
    page.goto((tmp_path / "out" / "annotated" / "clip.mp4").as_uri())
    page.wait_for_function(SHOWN)
    assert page.locator("video").evaluate("(video) => video.videoWidth") == 320
    page.close()
