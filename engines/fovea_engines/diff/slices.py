"""Measures small channels of a tensor, whose error large channels would hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.diff.decibel import decibel
from fovea_engines.session import Array

# The power of scores is at least this much below that of boxes in pixels.
_GAP_DB = 40.0
# Fewer values may be small by chance: a classifier has one value per class.
_FEWEST_VALUES = 16
_MAP_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class SmallSlices:
    """Slices of a tensor that are far smaller than its others.

    Attributes:
        axis: the axis of the slices.
        positions: positions on that axis.
        snr_db: SNR of these slices alone, decibel.
    """

    axis: int
    positions: tuple[int, ...]
    snr_db: float


class SliceTally:
    """Accumulates the power of each channel, image by image."""

    def __init__(self) -> None:
        # (axis, its length) -> power of the first, power of the noise.
        self._sums: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._values: dict[tuple[int, int], int] = {}  # in each slice

    def add(self, a: Array, b: Array) -> None:
        """Add one image's tensors, which have the same shape."""
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
