"""Measures the difference between two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array

_VALUES = 5
# The power of scores is at least this much below that of boxes in pixels.
_GAP_DB = 40.0
# Fewer values may be small by chance: a classifier has one value per class.
_FEWEST_VALUES = 16
_MAP_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class SmallSlices:
    """Positions on an axis whose values are far smaller than the others', and their own SNR."""

    axis: int
    positions: tuple[int, ...]
    snr_db: float


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
    """Accumulates the figures of a pair, image by image, with those of its channels if asked."""

    def __init__(self, *, channels: bool = False) -> None:
        self._slices = _SliceTally() if channels else None
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


def decibel(signal: float, noise: float) -> float:
    """Return 10 log10 of a ratio of powers; inf without noise, -inf without a signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return same


def _widen(known: tuple[float, float], values: NDArray[np.float64]) -> tuple[float, float]:
    return min(known[0], float(values.min())), max(known[1], float(values.max()))


class _SliceTally:
    """Accumulates the power of each channel, image by image."""

    def __init__(self) -> None:
        # (axis, its length) -> power of the first, power of the noise.
        self._sums: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._values: dict[tuple[int, int], int] = {}  # in each slice

    def add(self, a: Array, b: Array) -> None:
        one, other = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(one) & np.isfinite(other)
        one, other = np.where(finite, one, 0), np.where(finite, other, 0)
        signal, noise = one**2, (one - other) ** 2
        for axis in _channel_axes(a.ndim):
            rest = tuple(i for i in range(a.ndim) if i != axis)
            key = axis, a.shape[axis]
            sums = np.stack([signal.sum(axis=rest), noise.sum(axis=rest)])
            self._sums[key] = self._sums.get(key, 0) + sums
            self._values[key] = self._values.get(key, 0) + a.size // max(1, a.shape[axis])

    def small(self) -> SmallSlices | None:
        """Return the slices under the widest gap in power; None where no gap is wide.

        Slices without any signal are left out. The others under the gap are measured together, so
        that an almost empty one, such as a class that is in no image, counts for little.
        """
        found = [
            small
            for (axis, length), sums in self._sums.items()
            if self._values[axis, length] >= _FEWEST_VALUES
            and (small := _under_the_gap(axis, sums)) is not None
        ]
        return min(found, key=lambda small: small.snr_db, default=None)


def _channel_axes(dimensions: int) -> set[int]:
    """Return the axes that may be channels: the first of a map, the first or the last of rows."""
    if dimensions < 2:
        return set()
    return {1} if dimensions == _MAP_DIMENSIONS else {1, dimensions - 1}


def _under_the_gap(axis: int, sums: NDArray[np.float64]) -> SmallSlices | None:
    signal, noise = sums
    order = np.argsort(signal, kind="stable")
    order = order[signal[order] > 0]
    gaps = np.diff(10 * np.log10(signal[order]))
    if not gaps.size or gaps.max() < _GAP_DB:
        return None
    small = np.sort(order[: int(gaps.argmax()) + 1])
    snr_db = decibel(float(signal[small].sum()), float(noise[small].sum()))
    return SmallSlices(axis, tuple(small.tolist()), snr_db)
