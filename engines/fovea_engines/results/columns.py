"""Rounds and reads the numbers of responses, and pads rows of several images to one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fovea_engines.session import Array

SCORE: Final = 1e5
"""Number of steps per unit for rounding scores in responses.

The step of 0.00001 is smaller than the error of any model's scores.
"""


def round_columns(values: Array, per_unit: Array | float) -> list[list[float]]:
    """Return numbers [n, columns] as lists, rounded to multiples of 1 / `per_unit`.

    The rounding equals `np.round`.

    Args:
        values: array [n, columns].
        per_unit: number of steps per unit. One number for all columns, or an array with a number
            for each column.
    """
    numbers = values.astype(np.float64)
    numbers *= per_unit
    np.rint(numbers, numbers)
    numbers /= per_unit
    numbers += 0.0  # converts -0.0 to 0.0
    rows: list[list[float]] = numbers.tolist()
    return rows


def finite(rows: Sequence[Any] | Array, *columns: int) -> NDArray[np.float32]:
    """Convert numbers of a response to float32 [n, *columns].

    Raises:
        ValueError: the shape differs, or a number is not finite.
    """
    values = np.array(rows, np.float32) if len(rows) else np.zeros((0, *columns), np.float32)
    if values.shape != (len(rows), *columns) or not np.isfinite(values).all():
        raise ValueError(f"numbers of shape {values.shape} must be finite, with {columns} per row")
    return values


def pad_rows(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    """Return the arrays [k, ...] of n images as one array [n, length, ...], padded with zeros."""
    whole = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole
