"""Packs masks as Label Studio's brush regions have them.

Source: the format of @thi.ng/rle-pack. A header has the number of values, the bits of a value and
four widths of counts; then each run has a bit 1, the number of its width, its length and its value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WIDTHS = (4, 8, 12, 16)
_VALUE_BITS = 8
# Each pixel is red, green, blue and opacity, which are alike.
_CHANNELS = 4


def packed(mask: NDArray[np.uint8]) -> list[int]:
    """Pack a mask [height, width] of 0 and 1 into bytes."""
    pixels = mask.ravel()
    edges = np.flatnonzero(np.diff(pixels)) + 1
    starts = np.concatenate([[0], edges])
    lengths = np.diff(np.concatenate([starts, [pixels.size]])) * _CHANNELS
    bits = [f"{pixels.size * _CHANNELS:032b}{_VALUE_BITS - 1:05b}"]
    bits += [f"{width - 1:04b}" for width in _WIDTHS]
    for length, value in zip(lengths.tolist(), pixels[starts].tolist(), strict=True):
        bits += _run(length, f"{255 * value:0{_VALUE_BITS}b}")
    text = "".join(bits)
    size = -(-len(text) // 8)
    return list(int(text.ljust(8 * size, "0"), 2).to_bytes(size))


def _run(length: int, value: str) -> list[str]:
    parts = []
    while length:
        part = min(length, 1 << _WIDTHS[-1])
        index = next(i for i, width in enumerate(_WIDTHS) if part <= 1 << width)
        parts.append(f"1{index:02b}{part - 1:0{_WIDTHS[index]}b}{value}")
        length -= part
    return parts
