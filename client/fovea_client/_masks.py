"""Turns the masks of an answer into pixels."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


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
