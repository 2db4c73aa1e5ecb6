"""Defines the forms of a mask, reads them, and turns them into pixels."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask as COCO's compressed run lengths; `size` is (height, width) of the image."""

    size: tuple[int, int]
    counts: str

    @property
    def pixels(self) -> NDArray[np.bool_]:
        """Return the mask, bool [height, width]."""
        return run_length_pixels(self.size, self.counts)


Mask = RunLengths | tuple[tuple[float, ...], ...] | bytes
"""Run lengths, polygons of x1 y1 x2 y2 ..., or a PNG file of the whole image."""


def read_mask(value: Any) -> Mask | None:
    """Read the JSON of a mask; None where the answer has none."""
    match value:
        case None | str():
            return read_file(value)
        case {"size": [int(height), int(width)], "counts": str(counts)}:
            return RunLengths((height, width), counts)
    return tuple(tuple(map(float, outline)) for outline in value)


def read_file(text: str | None) -> bytes | None:
    """Read a file in base64; `ValueError` if it is none."""
    return None if text is None else base64.b64decode(text, validate=True)


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
