"""Videos that are written frame by frame."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fovea_preprocess.errors import InvalidOption
from fovea_server.offline import encoding
from fovea_server.offline.encoding import VideoFile, choose_codec
from fovea_server.offline.video import VideoHeader, read_frames

NOISE = """
import sys, numpy as np
from pathlib import Path
from fovea_server.offline.encoding import VideoFile
video = VideoFile(Path("v.mp4"), sys.argv[1], 25, (640, 480))
try:
    for seed in range(20):
        video.add(np.random.default_rng(seed).integers(0, 256, (480, 640, 3), np.uint8))
    video.finish()
except OSError as error:
    sys.exit(f"{error}")
finally:
    video.abandon()
"""


@pytest.mark.parametrize("codec", ["h264", "vp9", "mpeg4"])
def test_frames_of_any_size_and_rate_are_all_there(tmp_path, codec):
    video = VideoFile(tmp_path / "v.mp4", codec, 30000 / 1001 / 3, (65, 49))
    for shade in range(0, 250, 10):
        video.add(np.full((49, 65, 3), shade, np.uint8))
    video.finish()
    assert VideoHeader.read(tmp_path / "v.mp4").rate == pytest.approx(10000 / 1001, rel=1e-4)
    shades = [frame.pixels.mean() for frame in read_frames(tmp_path / "v.mp4", 1)]
    assert shades == pytest.approx(np.arange(0, 250, 10), abs=4)


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_a_video_for_which_the_disk_has_no_room_has_no_name(tmp_path, codec):
    written = subprocess.run(
        [sys.executable, "-c", NOISE, codec], cwd=tmp_path, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )  # fmt: skip
    assert written.returncode == 1
    assert re.match(r"\[Errno \d+\] ", written.stderr.splitlines()[-1]), written.stderr
    assert "Traceback" not in written.stderr
    assert list(Path(tmp_path).iterdir()) == []


def test_the_best_codec_that_is_there(monkeypatch):
    assert [choose_codec("auto"), choose_codec("mpeg4")] == ["h264", "mpeg4"]
    assert encoding.slowness("vp9") is None
    monkeypatch.setattr(encoding, "find_spec", lambda name: None)
    assert choose_codec("auto") == "vp9"
    with pytest.raises(InvalidOption, match="h264"):
        choose_codec("h264")
