"""Rounds numbers as answers have them, reads them, and pads rows of several images to a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fovea_engines.session import Array

SCORE: Final = 1e5
"""Scores are rounded to a hundredth of a per mille: finer than any model, and short on the wire."""


def round_columns(values: Array, per_unit: Array | float) -> list[list[float]]:
    """Return numbers [n, columns], rounded as `np.round` computes it, in one step for all."""
    numbers = values.astype(np.float64)
    numbers *= per_unit
    np.rint(numbers, numbers)
    numbers /= per_unit
    numbers += 0.0  # which makes 0 of -0
    rows: list[list[float]] = numbers.tolist()
    return rows


def finite(rows: Sequence[Any] | Array, *columns: int) -> NDArray[np.float32]:
    """Return numbers of an answer, float32 [n, *columns]; ValueError where they are not so."""
    values = np.array(rows, np.float32) if len(rows) else np.zeros((0, *columns), np.float32)
    if values.shape != (len(rows), *columns) or not np.isfinite(values).all():
        raise ValueError(f"{values.shape} numbers are not {columns} of each, or not finite")
    return values


def pad_rows(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    """Return arrays [k, ...] of several images as one, [n, length, ...], with zeros behind each."""
    whole = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole
