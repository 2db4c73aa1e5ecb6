"""Rounds and reads the numbers of responses, and pads rows of several images to one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fovea_engines.session import Array

SCORE: Final = 1e5
"""Scores in responses are rounded to 1 / SCORE = 0.00001, finer than any model's accuracy."""


def round_columns(values: Array, per_unit: Array | float) -> list[list[float]]:
    """Return numbers [n, columns] as lists, rounded to 1 / `per_unit` as `np.round` rounds.

    Args:
        values: array [n, columns].
        per_unit: number of steps in a unit, for all columns or for each.
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
        raise ValueError(f"{values.shape} numbers are not {columns} of each, or not finite")
    return values


def pad_rows(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    """Return arrays [k, ...] of several images as one array [n, length, ...], padded with zeros."""
    whole = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole
