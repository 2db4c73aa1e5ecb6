"""Measures the difference between two tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array

_VALUES = 5
_BEGIN = 4096
# Smallest difference in power between small and large slices in decibel. In an output with boxes in
# pixels and scores of 0 to 1, the difference is larger than this.
_GAP_DB = 40.0
# Smallest number of values in a slice. A slice with fewer values may have small values by chance.
# For example, a classifier has one value per class.
_FEWEST_VALUES = 16
_MAP_DIMENSIONS = 4

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SmallSlices:
    """Slices along an axis whose values are far smaller than the values in the other slices.

    For example, an output may have boxes in pixels and scores of 0 to 1 along one axis.

    Attributes:
        axis: index of the axis.
        positions: indices of the small slices on the axis.
        snr_db: SNR of the small slices in decibel.
    """

    axis: int
    positions: tuple[int, ...]
    snr_db: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The difference between two tensors over all images.

    Attributes:
        cosine: cosine similarity, -1 to 1; 1 if both tensors are zero.
        snr_db: signal-to-noise ratio 10 log10(sum a^2 / sum (a - b)^2) in decibel. It is inf if the
            tensors are equal, and -inf if only the first tensor is zero.
        max_error: largest |a - b|. Booleans count as 0 and 1.
        range_a: smallest and largest value of the first tensor.
        range_b: smallest and largest value of the second tensor.
        broken: number of positions at which only one value is finite, or at which both values are
            not finite but differ, e.g. NaN and infinity. The other figures ignore these positions.
        largest_lost: largest |a| at a position where b is not finite; 0 if there is no such
            position.
        values: first five nonzero values of the first tensor for the first image, and the second
            tensor's values at the same positions.
        small: small slices, whose error the large slices would hide in `snr_db`; None if there are
            no small slices, or if they were not searched.
        unknown: number of positions at which both values are NaN. It is unknown whether they agree.
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
    unknown: int = 0


def figures_of(pairs: Iterable[tuple[Array, Array]], *, channels: bool = False) -> Figures:
    """Measure a pair of tensors over all images.

    Args:
        pairs: for each image, the two tensors. They have the same shape.
        channels: True to search for slices whose values are far smaller than in the other slices.
    """
    a2 = b2 = ab = noise = max_error = largest_lost = 0.0
    ranges = [(math.inf, -math.inf), (math.inf, -math.inf)]
    broken = unknown = 0
    values: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    slices: dict[tuple[int, int], Floats] = {}
    for a, b in pairs:
        one, other = a.astype(np.float64), b.astype(np.float64)
        if values is None:
            first = _nonzero(one)
            values = tuple(one.flat[first].tolist()), tuple(other.flat[first].tolist())
        finite = np.isfinite(one) & np.isfinite(other)
        if finite.all():
            ranges = list(map(_widen, ranges, (one, other)))
        else:
            neither = np.isnan(one) & np.isnan(other)
            unknown += int(np.count_nonzero(neither))
            same = (one == other) | neither
            broken += int(np.count_nonzero(~finite & ~same))
            lost = np.abs(one[np.isfinite(one) & ~finite])
            largest_lost = max(largest_lost, float(lost.max(initial=0)))
            ranges = [_widen(r, v[finite]) for r, v in zip(ranges, (one, other), strict=True)]
            one[~finite] = other[~finite] = 0
        off = one - other
        if channels:
            _add_slices(slices, one, off)
        a2, b2 = a2 + dot(one, one), b2 + dot(other, other)
        ab, noise = ab + dot(one, other), noise + dot(off, off)
        max_error = max(max_error, float(off.max(initial=0)), -float(off.min(initial=0)))
    norm = math.sqrt(a2 * b2)
    found = [_find_gap(axis, sums) for (axis, _), sums in slices.items()]
    return Figures(
        cosine=ab / norm if norm else float(a2 == b2),
        snr_db=decibel(a2, noise),
        max_error=max_error,
        range_a=ranges[0],
        range_b=ranges[1],
        broken=broken,
        largest_lost=largest_lost,
        values=values or ((), ()),
        small=min(filter(None, found), key=lambda small: small.snr_db, default=None),
        unknown=unknown,
    )


def decibel(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise) in decibel.

    The result is inf if the noise is 0; otherwise it is -inf if the signal is 0.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def dot(a: Array, b: Array) -> float:
    """Return the dot product of two float arrays of the same size.

    `np.vdot` is not suitable: it calls OpenBLAS, which starts threads on all cores. The threads
    keep spinning after the call.
    """
    return float(np.einsum("i,i", a.ravel(), b.ravel(), dtype=np.float64))


def _nonzero(values: Floats) -> NDArray[np.intp]:
    """Return the flat indices of the first five nonzero values.

    They are usually near the beginning, so the beginning is searched first.
    """
    found = np.flatnonzero(values.flat[:_BEGIN])
    return (found if found.size >= _VALUES else np.flatnonzero(values))[:_VALUES]


def _widen(known: tuple[float, float], values: Floats) -> tuple[float, float]:
    return float(values.min(initial=known[0])), float(values.max(initial=known[1]))


def _add_slices(slices: dict[tuple[int, int], Floats], one: Floats, off: Floats) -> None:
    """Add the values of one image to the sums for each slice of the possible channel axes.

    The sums are the signal power, the noise power and the number of values of each slice.

    The keys of `slices` are an axis that may have channels, and its length. This is axis 1 for
    tensors with four dimensions. For other tensors it is axis 1 and the last axis.
    """
    last = one.ndim - 1
    for axis in {1} if one.ndim == _MAP_DIMENSIONS else {1, last} if last > 0 else ():
        rest = tuple(i for i in range(one.ndim) if i != axis)
        length = one.shape[axis]
        counts = np.full(length, one.size // max(1, length))
        sums = np.stack([(one**2).sum(axis=rest), (off**2).sum(axis=rest), counts])
        slices[axis, length] = slices.get((axis, length), 0) + sums


def _find_gap(axis: int, sums: Floats) -> SmallSlices | None:
    """Return the slices whose power is below the widest gap between the slices' powers.

    If no gap is wide enough, return None.

    Slices that are completely zero are ignored. The SNR is measured over all small slices together.
    So a slice with almost no signal, e.g. a class that is in no image, has little weight.
    """
    signal, noise, counts = sums
    if counts.max(initial=0) < _FEWEST_VALUES:
        return None
    order = np.argsort(signal, kind="stable")
    order = order[signal[order] > 0]
    gaps = np.diff(10 * np.log10(signal[order]))
    if not gaps.size or gaps.max() < _GAP_DB:
        return None
    small = np.sort(order[: int(gaps.argmax()) + 1])
    snr_db = decibel(float(signal[small].sum()), float(noise[small].sum()))
    return SmallSlices(axis, tuple(small.tolist()), snr_db)
