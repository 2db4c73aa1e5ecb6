"""Reads the frames of videos."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.errors import InvalidImage

# The functions below report errors in files, so OpenCV's own warnings are silenced.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)

Pixels = NDArray[np.uint8]

# Frame rate, in frames per second, of a video whose header has none.
_USUAL_RATE = 25.0
# Largest time in seconds by which a video may end before the duration in its header. Containers
# round times, and sound may last a little longer than the images.
_TOLERANCE_S = 1.0
# Number of consecutive undecodable frames after which the video ends.
_MAX_BROKEN = 100


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """The number of frames, and the frame rate in frames per second, from the header of a file.

    Matroska files do not store the number of frames. OpenCV computes it from the duration and the
    frame rate.
    """

    frames: int
    rate: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a file; raise InvalidImage if the file is not a video."""
        capture = _open(path)
        try:
            return cls._of(capture)
        finally:
            capture.release()

    @classmethod
    def _of(cls, capture: cv2.VideoCapture) -> Self:
        rate = capture.get(cv2.CAP_PROP_FPS)
        frames = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        return cls(max(0, int(frames)), rate if 0 < rate < 1000 else _USUAL_RATE)


@dataclass(frozen=True, slots=True, eq=False)
class VideoFrame:
    """A frame of a video.

    Attributes:
        number: number of the frame, from 0.
        time_s: time in seconds from the beginning of the video; it increases with each frame.
        pixels: pixels of the frame, uint8 RGB [h, w, 3]; None if the frame cannot be decoded.
    """

    number: int
    time_s: float
    pixels: Pixels | None


def read_frames(path: Path, every: int) -> Iterator[VideoFrame]:
    """Yield every n-th frame of a video, where n is `every`.

    Raises:
        InvalidImage: the file is not a video; or, after the last frame, the video is shorter than
            its header declares.
    """
    capture = _open(path)
    try:
        header, number = VideoHeader._of(capture), 0
        last_s, longest_s, step_s = -1 / header.rate, 0.0, 1 / header.rate
        while (broken := _broken_before(capture)) is not None:
            for at in range(number, number + broken):
                if at % every == 0:
                    yield VideoFrame(at, last_s + (at - number + 1) * step_s, None)
            given_s = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            # Raw H.264 files contain no times. In files that were copied badly, times may go
            # backwards.
            time_s = given_s if given_s > last_s or number == 0 else last_s + (broken + 1) * step_s
            number, longest_s, last_s = number + broken, max(longest_s, time_s - last_s), time_s
            if number % every == 0:
                yield VideoFrame(number, time_s, _pixels(capture))
            number += 1
    finally:
        capture.release()
    length_s = header.frames / header.rate
    # The last frame may be shown for as long as any other frame, so the longest interval is
    # subtracted.
    missing_s = length_s - last_s - longest_s
    if number == 0 or (number < header.frames and missing_s > _TOLERANCE_S):
        raise InvalidImage(
            f"the video ends after {last_s + step_s:.1f} of {length_s:.1f} s: it is truncated or "
            "damaged, and the results up to there are kept"
        )


def _broken_before(capture: cv2.VideoCapture) -> int | None:
    """Advance to the next readable frame, and return the number of unreadable frames before it.

    Return None at the end of the video.
    """
    return next((broken for broken in range(_MAX_BROKEN) if capture.grab()), None)


def _pixels(capture: cv2.VideoCapture) -> Pixels | None:
    read, frame = capture.retrieve()
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8) if read else None


def _open(path: Path) -> cv2.VideoCapture:
    # An absolute path is never read as a URL, and the FFmpeg reader never reads it as a pattern of
    # image files.
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise InvalidImage("not a readable video: it is truncated, damaged, or has another format")
    return capture
