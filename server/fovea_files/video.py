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

# Its warnings about files are told in our words.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)

Pixels = NDArray[np.uint8]

# Of a video whose header says nothing.
_USUAL_RATE = 25.0
# Containers count by time and round; sound may be a little longer than the images.
_TOLERANCE_S = 1.0


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """The number of frames and the frames a second, as a file says."""

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


def read_frames(path: Path, every: int) -> Iterator[tuple[int, Pixels]]:
    """Yield the number, from 0, and the pixels, RGB, of each `every`-th frame.

    Raises:
        InvalidImage: the file is no video; or after the frames before, it breaks off.
    """
    capture = _open(path)
    try:
        header, number = VideoHeader._of(capture), 0
        while capture.grab():
            if number % every == 0:
                read, frame = capture.retrieve()
                if not read:
                    break
                yield number, np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)
            number += 1
    finally:
        capture.release()
    if number == 0 or (header.frames - number) / header.rate > _TOLERANCE_S:
        raise InvalidImage(
            f"the video breaks off after {number} of {header.frames} frames: it is cut off or "
            "damaged, and what was found before is kept"
        )


def _open(path: Path) -> cv2.VideoCapture:
    # An absolute path is never an address, and with this reader never a pattern of image files.
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise InvalidImage("no video that can be read: it is cut off, damaged, or of another kind")
    return capture
