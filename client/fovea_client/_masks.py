"""Defines the forms of a mask, and turns them into pixels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fovea_client.png import read_grey


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
        pixels, part = np.zeros(self.size, np.bool_), read_grey(self.png)
        height, width = part.shape
        pixels[self.top : self.top + height, self.left : self.left + width] = part
        return pixels


@dataclass(frozen=True, slots=True)
class Outlines:
    """A mask as polygons of x1 y1 x2 y2 ... in pixels; `size` is (height, width) of the image."""

    size: tuple[int, int]
    polygons: tuple[tuple[float, ...], ...]


Mask = RunLengths | Outlines | MaskFile


def run_length_pixels(size: tuple[int, int], counts: str) -> NDArray[np.bool_]:
    """Decode COCO's compressed run lengths to bool [height, width].

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
        if group & 0x20:
            continue
        if group & 0x10:
            number -= 1 << shift
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    height, width = size
    pixels = np.zeros(width * height, np.bool_)
    edges = list(accumulate(lengths))
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        pixels[start:end] = True
    return pixels.reshape(width, height).T
