"""Packs masks as Label Studio's brush regions have them.

Source: the format of @thi.ng/rle-pack. A header has the number of values, the bits of a value and
four widths of counts; then each run has a bit 1, the number of its width, its length and its value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WIDTHS = np.array([4, 8, 12, 16])
_LONGEST = 1 << 16
_VALUE_BITS = 8
# Each pixel is red, green, blue and opacity, which are alike.
_CHANNELS = 4


def packed(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack a mask [height, width] of 0 and 1 into bytes."""
    pixels = mask.ravel()
    edges = np.flatnonzero(np.diff(pixels)) + 1
    starts = np.concatenate([[0], edges])
    lengths = np.diff(np.concatenate([starts, [pixels.size]])) * _CHANNELS
    header = f"{pixels.size * _CHANNELS:032b}{_VALUE_BITS - 1:05b}"
    header += "".join(f"{width - 1:04b}" for width in _WIDTHS)
    bits = np.frombuffer(header.encode(), np.uint8) - ord("0")
    return np.packbits(np.concatenate([bits, _runs(lengths, pixels[starts])]))


def _runs(lengths: NDArray[np.int64], values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits of runs; the longest are split, as no width of a count is enough."""
    counts = -(-lengths // _LONGEST)
    parts = np.full(counts.sum(), _LONGEST)
    parts[counts.cumsum() - 1] = lengths - (counts - 1) * _LONGEST
    widths = np.searchsorted(1 << _WIDTHS, parts)
    sizes = 3 + _WIDTHS[widths] + _VALUE_BITS
    codes = (4 | widths) << _WIDTHS[widths] | (parts - 1)
    codes = codes << _VALUE_BITS | np.repeat(values, counts) * 255
    # Big-endian: each row has the bits of a run, and zeros before them.
    rows = np.unpackbits(codes.astype(">u4").view(np.uint8).reshape(-1, 4), axis=1)
    bits: NDArray[np.uint8] = rows[np.arange(32) >= 32 - sizes[:, None]]
    return bits
