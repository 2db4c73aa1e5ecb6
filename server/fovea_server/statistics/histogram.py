"""Histograms of durations."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from fovea_server.statistics.family import Family, Labels


class Histogram:
    """Counts values by the smallest bound that holds them; safe in any thread.

    Args:
        bounds: largest value of each class, ascending; larger values have a class of their own.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def add_to(self, family: Family, labels: Labels) -> None:
        """Add the histogram to a family."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            family.add({**labels, "le": bound}, count, "_bucket")
        family.add(labels, counts[-1], "_count")
        family.add(labels, total, "_sum")
