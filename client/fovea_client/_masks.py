"""Defines the forms of a mask, and turns them into pixels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fovea_client.png import MAX_PIXELS, read_grey

# Bits of the longest number in run lengths, and more.
_DIGITS = 60


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask as COCO's compressed run lengths; `size` is (height, width) of the image."""

    size: tuple[int, int]
    counts: str

    @property
    def pixels(self) -> NDArray[np.bool_]:
        """Return the mask, bool [height, width]."""
        return run_length_pixels(self.size, self.counts)


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A mask as a PNG file of the part of the image that holds it.

    Attributes:
        size: (height, width) of the image.
        left: column of the image at which the file begins.
        top: row of the image at which it begins.
        png: the file, white on the object.
    """

    size: tuple[int, int]
    left: int
    top: int
    png: bytes

    @property
    def pixels(self) -> NDArray[np.bool_]:
        """Return the mask in the whole image, bool [height, width]."""
        pixels, part = _empty(self.size), read_grey(self.png)
        height, width = part.shape
        window = pixels[max(0, self.top) :, max(0, self.left) :][:height, :width]
        # A mask without a pixel is written as one that is 0.
        if min(self.top, self.left) < 0 or (part.size > 1 and window.shape != part.shape):
            raise ValueError("the file of a mask does not lie in its image")
        window[:] = part[: window.shape[0], : window.shape[1]]
        return pixels


@dataclass(frozen=True, slots=True)
class Outlines:
    """A mask as polygons of x1 y1 x2 y2 ... in pixels; `size` is (height, width) of the image."""

    size: tuple[int, int]
    polygons: tuple[tuple[float, ...], ...]


Mask = RunLengths | Outlines | MaskFile


def run_length_pixels(size: tuple[int, int], counts: str) -> NDArray[np.bool_]:
    """Decode COCO's compressed run lengths to bool [height, width]; ValueError: they do not fit.

    Numbers are written in groups of five bits from the lowest, in the characters from "0" on, and
    from the third on as the difference to the number before the last (cocoapi's `rleFrString`).
    Runs go down the columns, and the first is outside the mask.
    """
    lengths: list[int] = []
    number = shift = 0
    for character in counts.encode("ascii"):
        group = character - 48
        number |= (group & 0x1F) << shift
        shift += 5
        if shift > _DIGITS:
            break
        if group & 0x20:
            continue
        if group & 0x10:
            number -= 1 << shift
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    pixels = _empty(size[::-1])
    edges = list(accumulate(lengths))
    if shift or not edges or min(lengths) < 0 or edges[-1] != pixels.size:
        raise ValueError("the run lengths of a mask do not fit its size")
    line = pixels.reshape(-1)
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        line[start:end] = True
    return pixels.T


def _empty(size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return an image without a pixel that is set, bool; ValueError if none is as large."""
    if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"no image has {size[0]} x {size[1]} pixels")
    return np.zeros(size, np.bool_)
