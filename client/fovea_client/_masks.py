"""The encodings of a mask, and their conversion to pixels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fovea_client.png import MAX_PIXELS, read_grey

# Largest number of bits of an encoded run length. The run lengths of every image need fewer bits.
_DIGITS = 60


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask in COCO's compressed run-length encoding.

    Attributes:
        size: (height, width) of the image in pixels.
        counts: the encoded run lengths.
    """

    size: tuple[int, int]
    counts: str

    @property
    def pixels(self) -> NDArray[np.bool_]:
        """Return the mask, bool [height, width].

        Raises:
            ValueError: the run lengths do not fit the size.
        """
        return run_length_pixels(self.size, self.counts)


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A mask as a PNG file. The file covers only the part of the image that contains the object.

    Attributes:
        size: (height, width) of the image in pixels.
        left: column of the image at which the file begins.
        top: row of the image at which the file begins.
        png: PNG file; pixels of the object are white.
    """

    size: tuple[int, int]
    left: int
    top: int
    png: bytes

    @property
    def pixels(self) -> NDArray[np.bool_]:
        """Return the mask of the whole image, bool [height, width].

        Raises:
            ValueError: the PNG file is damaged, or extends beyond the image.
        """
        pixels, part = _empty(self.size), read_grey(self.png)
        height, width = part.shape
        window = pixels[max(0, self.top) :, max(0, self.left) :][:height, :width]
        # The server writes an empty mask as a file with one black pixel.
        if min(self.top, self.left) < 0 or (part.size > 1 and window.shape != part.shape):
            raise ValueError("a mask reaches over the edge of its image")
        window[:] = part[: window.shape[0], : window.shape[1]]
        return pixels


@dataclass(frozen=True, slots=True)
class Outlines:
    """A mask as polygons.

    Attributes:
        size: (height, width) of the image in pixels.
        polygons: coordinates x1 y1 x2 y2 ... of each polygon, in pixels.
    """

    size: tuple[int, int]
    polygons: tuple[tuple[float, ...], ...]


Mask = RunLengths | Outlines | MaskFile


def run_length_pixels(size: tuple[int, int], counts: str) -> NDArray[np.bool_]:
    """Decode COCO's compressed run lengths to a mask, bool [height, width].

    The format is the one of cocoapi's `rleFrString`. Each number is split into groups of five bits,
    lowest group first, and each group is one character, beginning at "0". From the fourth number
    on, the string holds the difference between a number and the number two places before it. Runs
    go down the columns. The first run is outside the mask.

    Raises:
        ValueError: the run lengths do not fit the size.
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
        raise ValueError("the run lengths of a mask do not add up to its number of pixels")
    line = pixels.reshape(-1)
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        line[start:end] = True
    return pixels.T


def _empty(size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return an empty mask, bool [height, width].

    Raises:
        ValueError: no image has this size.
    """
    if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"{size[0]} x {size[1]} is not a valid image size")
    return np.zeros(size, np.bool_)
