"""Measures the difference between two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.diff.decibel import decibel
from fovea_engines.diff.slices import SliceTally, SmallSlices
from fovea_engines.session import Array

_VALUES = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a pair of tensors over all images.

    Attributes:
        cosine: of the angle between them, -1 to 1; 1 where both are zero.
        snr_db: 10 log10(sum a^2 / sum (a - b)^2), decibel; inf where they are equal, -inf where the
            first is zero and the second is not.
        max_error: largest |a - b|; booleans count as 0 and 1.
        range_a: least and largest value of the first.
        range_b: least and largest value of the second.
        broken: number of values that are finite in only one, or differently infinite or NaN; not in
            the figures above.
        largest_lost: largest |a| where it is finite and the second is not; 0 where there is none.
        values: the first image's first five nonzero values of the first, and the second's at the
            same positions.
        small: slices that the large ones would hide; None without any, or if channels are not
            examined.
    """

    cosine: float
    snr_db: float
    max_error: float
    range_a: tuple[float, float]
    range_b: tuple[float, float]
    broken: int
    largest_lost: float
    values: tuple[tuple[float, ...], tuple[float, ...]]
    small: SmallSlices | None


class Tally:
    """Accumulates the figures of a pair, image by image.

    Args:
        channels: examine the channels, too.
    """

    def __init__(self, *, channels: bool = False) -> None:
        self._slices = SliceTally() if channels else None
        self._sums = np.zeros(4)
        self._max_error = 0.0
        self._ranges = [(math.inf, -math.inf), (math.inf, -math.inf)]
        self._broken = 0
        self._largest_lost = 0.0
        self._values: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def add(self, a: Array, b: Array) -> None:
        """Add one image's tensors, which have the same shape."""
        if self._slices is not None:
            self._slices.add(a, b)
        one, other = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        if self._values is None:
            first = np.flatnonzero(one)[:_VALUES]
            self._values = tuple(one[first].tolist()), tuple(other[first].tolist())
        finite = np.isfinite(one) & np.isfinite(other)
        if not finite.all():
            self._broken += int(np.count_nonzero(~finite & ~_same(one, other)))
            lost = np.abs(one[np.isfinite(one) & ~finite])
            self._largest_lost = max(self._largest_lost, float(lost.max(initial=0)))
            one, other = one[finite], other[finite]
        if not one.size:
            return
        self._ranges = [_widen(r, v) for r, v in zip(self._ranges, (one, other), strict=True)]
        self._sums[:3] += one @ one, other @ other, one @ other
        one -= other
        self._sums[3] += one @ one
        self._max_error = max(self._max_error, float(np.abs(one, out=one).max()))

    def figures(self) -> Figures:
        """Return the figures over all images."""
        a2, b2, ab, noise = map(float, self._sums)
        norm = math.sqrt(a2 * b2)
        return Figures(
            cosine=ab / norm if norm else float(a2 == b2),
            snr_db=decibel(a2, noise),
            max_error=self._max_error,
            range_a=self._ranges[0],
            range_b=self._ranges[1],
            broken=self._broken,
            largest_lost=self._largest_lost,
            values=self._values or ((), ()),
            small=None if self._slices is None else self._slices.small(),
        )


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return same


def _widen(known: tuple[float, float], values: NDArray[np.float64]) -> tuple[float, float]:
    return min(known[0], float(values.min())), max(known[1], float(values.max()))
