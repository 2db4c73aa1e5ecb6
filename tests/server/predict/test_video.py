"""Videos that are written frame by frame."""

import numpy as np
import pytest

from fovea_files.video import VideoFile


def test_a_video_that_is_not_written_whole_has_no_name(tmp_path):
    video = VideoFile(tmp_path / "v.mp4", 25, (64, 48))
    for _ in range(5):
        video.add(np.zeros((48, 64, 3), np.uint8))
    # OpenCV reports no disk that is full.
    (tmp_path / "v.part.mp4").unlink()
    (tmp_path / "v.part.mp4").write_bytes(b"cut off")
    with pytest.raises(OSError, match="was not written whole"):
        video.finish()
    assert not (tmp_path / "v.mp4").exists()
