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

# Its warnings about files are reported in our words.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)

Pixels = NDArray[np.uint8]

# Of a video whose header says nothing.
_USUAL_RATE = 25.0
# Containers round; sound may be a little longer than the images.
_TOLERANCE_S = 1.0
# After so many frames in a row that cannot be decoded, the video is over.
_MAX_BROKEN = 100


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """The number of frames and the frames a second, as a file says.

    Matroska has no number of frames: OpenCV computes one from the duration and the rate.
    """

    frames: int
    rate: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it; InvalidImage if the file is no video."""
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
        number: from 0.
        time_s: from the beginning of the video; it grows from frame to frame.
        pixels: RGB; None if the frame cannot be decoded.
    """

    number: int
    time_s: float
    pixels: Pixels | None


def read_frames(path: Path, every: int) -> Iterator[VideoFrame]:
    """Yield each `every`-th frame.

    Raises:
        InvalidImage: the file is no video; or after the frames before, it breaks off.
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
            # Raw H.264 has no times, and files that were copied wrongly have times that go back.
            time_s = given_s if given_s > last_s or number == 0 else last_s + (broken + 1) * step_s
            number, longest_s, last_s = number + broken, max(longest_s, time_s - last_s), time_s
            if number % every == 0:
                yield VideoFrame(number, time_s, _pixels(capture))
            number += 1
    finally:
        capture.release()
    length_s = header.frames / header.rate
    # The last frame may be shown for as long as any other.
    missing_s = length_s - last_s - longest_s
    if number == 0 or (number < header.frames and missing_s > _TOLERANCE_S):
        raise InvalidImage(
            f"the video breaks off after {last_s + step_s:.1f} of {length_s:.1f} s: it is cut off "
            "or damaged, and what was found before is kept"
        )


def _broken_before(capture: cv2.VideoCapture) -> int | None:
    """Go on to the next frame, and return the number of those that were skipped; None: the end."""
    return next((broken for broken in range(_MAX_BROKEN) if capture.grab()), None)


def _pixels(capture: cv2.VideoCapture) -> Pixels | None:
    read, frame = capture.retrieve()
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8) if read else None


def _open(path: Path) -> cv2.VideoCapture:
    # An absolute path is never an address, and with this reader never a pattern of image files.
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise InvalidImage("no video that can be read: it is cut off, damaged, or of another kind")
    return capture
