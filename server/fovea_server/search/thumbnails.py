"""Small pictures of the images of an index, for people who look at matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

_SIDE = 128
_QUALITY = 80


def thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image, uint8 RGB [h, w, 3], as a JPEG file of at most 128 pixels a side."""
    height, width = pixels.shape[:2]
    scale = min(1.0, _SIDE / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(small, cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1])


@dataclass(frozen=True, slots=True, eq=False)
class Thumbnails:
    """JPEG files, in the order of the images.

    Attributes:
        files: uint8 [bytes], one behind the other.
        ends: int64 [n], where each ends.
    """

    files: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, files: Sequence[bytes]) -> Self:
        """Put files together."""
        ends = np.fromiter(accumulate(map(len, files)), np.int64, len(files))
        return cls(np.frombuffer(b"".join(files), np.uint8), ends)

    @classmethod
    def read(cls, files: NDArray[Any], ends: NDArray[Any], number: int) -> Self:
        """Check arrays of a file, of a number of images; ValueError if they do not fit."""
        made = cls(files, ends.astype(np.int64))
        lengths = np.diff(made.ends, prepend=0)
        last = made.ends[-1] if len(ends) else 0
        if files.dtype != np.uint8 or len(ends) != number or last != len(files):
            raise ValueError(f"its thumbnails are not those of {number} images")
        if (lengths < 0).any():
            raise ValueError("its thumbnails have no order")
        return made

    def __getitem__(self, at: int) -> bytes:
        """Return one file."""
        start = 0 if at == 0 else self.ends[at - 1]
        return self.files[start : self.ends[at]].tobytes()
