"""Computes from the values of a tensor the range that 8 bits should represent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.repository.figures import Method
from fovea_preprocess.errors import BuildError

BINS = 4096
_QUANTISED = 128  # number of magnitudes that a signed 8-bit value can have
_STEPS = 255  # number of steps between the ends of an 8-bit range
_CANDIDATES = 64
# Fraction of a tensor's values that the range of the method "percentile" contains. It is close to
# 1, because objects are rare in images, and so are the large activations that detect them.
PERCENTILE = 0.999999


class Histogram:
    """A histogram of the magnitudes of a tensor's values, with `BINS` bins.

    If a value exceeds the last bin, the width of all bins is doubled.

    Attributes:
        low: smallest value so far, at most 0.
        high: largest value so far, at least 0.
    """

    def __init__(self) -> None:
        self.low = 0.0
        self.high = 0.0
        self._counts: NDArray[np.int64] = np.zeros(BINS, np.int64)
        self._top = 0.0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the values of one image.

        Raises:
            BuildError: a value is NaN or infinite.
        """
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
        if not np.isfinite((low, high)).all():
            raise BuildError("a value is not finite")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high)
        if largest == 0.0:
            self._counts[0] += values.size
            return
        if self._top == 0.0:
            self._top = largest
        while largest > self._top:
            halved = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([halved, np.zeros(BINS // 2, np.int64)])
            self._top *= 2
        # Divide before the multiplication, because `BINS / top` would overflow for a tensor of tiny
        # values.
        bins = (np.abs(values).ravel() / np.float32(self._top) * np.float32(BINS)).astype(np.int32)
        self._counts += np.bincount(np.minimum(bins, BINS - 1, out=bins), minlength=BINS)

    def range(self, method: Method) -> tuple[float, float]:
        """Return the range (low, high) that a method chooses.

        `low` is at most 0, `high` at least 0.
        """
        match method:
            case "minmax":
                return self.low, self.high
            case "percentile":
                bound = self.percentile(PERCENTILE)
            case "entropy":
                bound = self.entropy()
            case "mse":
                bound = self.squared_error()
        return max(self.low, -bound), min(self.high, bound)

    def percentile(self, share: float) -> float:
        """Return the magnitude that a fraction of the values does not exceed.

        `share` is the fraction, 0 to 1.
        """
        reached = np.searchsorted(np.cumsum(self._counts), share * self._counts.sum())
        return self._edge(int(reached) + 1)

    def entropy(self) -> float:
        """Return the magnitude for clipping that loses the least information.

        For each of several magnitudes, the clipped distribution is compared with its quantisation
        to 128 steps. The magnitude with the smallest Kullback-Leibler divergence is chosen (S.
        Migacz, "8-bit Inference with TensorRT", GTC 2017).
        """
        # Ignore the peak at zero, which almost every activation has, because quantisation keeps
        # zeros exactly. The first bin gets the count of the second bin instead.
        counts = self._counts.astype(np.float64)
        counts[0] = counts[1]
        used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
        candidates = np.unique(np.linspace(_QUANTISED, used, _CANDIDATES, dtype=int))
        if used <= _QUANTISED:
            return self._edge(used)
        losses = [_divergence(counts, int(bins)) for bins in candidates]
        return self._edge(int(candidates[int(np.argmin(losses))]))

    def squared_error(self) -> float:
        """Return the magnitude for clipping with the smallest mean squared error.

        The mean squared error by rounding is step² / 12 for values in the range. The error of a
        value beyond the range is its distance from the range.
        """
        counts = self._counts.astype(np.float64)
        # Replace the count of the first bin as in `entropy`, because quantisation keeps zeros
        # exactly.
        counts[0] = counts[1]
        used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
        middles = np.arange(used) + 0.5
        bounds = np.unique(np.linspace(used / _QUANTISED, used, _CANDIDATES, dtype=int))
        sides = [side * BINS / self._top for side in (-self.low, self.high)] if self._top else []
        losses = []
        for bound in bounds:
            step = sum(min(bound, side) for side in sides) / _STEPS
            beyond = np.maximum(middles - bound, 0)
            rounded = counts[:bound].sum() * step**2 / 12
            losses.append(rounded + float(counts[:used] @ beyond**2))
        return self._edge(int(bounds[int(np.argmin(losses))]))

    def _edge(self, bins: int) -> float:
        return min(self._top * bins / BINS, max(-self.low, self.high))


def _divergence(counts: NDArray[np.float64], bins: int) -> float:
    """Return the information in nats that is lost by clipping and by quantisation to 128 steps.

    `bins` is the number of bins that the clipping keeps.
    """
    kept = counts[:bins]
    reference = kept.copy()
    reference[-1] += counts[bins:].sum()
    step = np.arange(bins) * _QUANTISED // bins
    occupied = kept > 0
    totals: NDArray[Any] = np.bincount(step, weights=kept, minlength=_QUANTISED)
    sharers = np.bincount(step, weights=occupied, minlength=_QUANTISED)
    coarse = np.where(occupied, totals[step] / np.maximum(sharers[step], 1), 0.0)
    both = (reference > 0) & (coarse > 0)
    p, q = reference[both] / reference.sum(), coarse[both] / coarse.sum()
    # Clipped values are added to the last bin. If this bin was empty, the coarse histogram has no
    # values there, so these values count as lost.
    missing = reference[(reference > 0) & (coarse == 0)].sum() / reference.sum()
    return float((p * np.log(p / q)).sum() + missing * 10)
