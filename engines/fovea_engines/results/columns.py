"""Rounds numbers as answers have them, and pads rows of several images to one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from fovea_engines.session import Array

SCORE: Final = 1e5
"""Scores are rounded to a hundredth of a per mille: finer than any model, and short on the wire."""


def rounded(values: Array, per_unit: Array | float) -> list[list[float]]:
    """Return numbers [n, columns], rounded as `np.round` computes it, in one step for all."""
    numbers = values.astype(np.float64)
    numbers *= per_unit
    np.rint(numbers, numbers)
    numbers /= per_unit
    numbers += 0.0  # which makes 0 of -0
    rows: list[list[float]] = numbers.tolist()
    return rows


def padded(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    """Return arrays [k, ...] of several images as one, [n, length, ...], with zeros behind each."""
    whole = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole
