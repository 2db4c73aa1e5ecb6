"""Histograms, and those of how long requests take from their first byte to their answer."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Container, Sequence
from itertools import accumulate

from fovea_server.statistics.family import Family, Labels

_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
# Each costs memory and time of every scrape, and models may come and go under any name.
_MOST_HISTOGRAMS = 4096


class Histogram:
    """Counts values by the smallest of the ascending bounds that holds them; safe in any thread."""

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


class Durations:
    """A histogram for each model and status; one thread adds, any may read.

    Only names in `models` become labels; a client's other names count as "". The number of
    histograms is limited: beyond it, the oldest begins again from nothing.
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._histograms: dict[tuple[str, int | str], Histogram] = {}

    def observe(self, model: str, status: int | str, seconds: float) -> None:
        """Count a request that was answered."""
        histogram = self._histograms.get((model, status))
        if histogram is None:
            key = (model if model in self._models else "", status)
            histogram = self._histograms.setdefault(key, Histogram(_BOUNDS_S))
            if len(self._histograms) > _MOST_HISTOGRAMS:
                del self._histograms[next(iter(self._histograms))]
        histogram.observe(seconds)

    def family(self) -> Family:
        """Build the family of all histograms."""
        family = Family(
            "fovea_request_duration_seconds",
            "histogram",
            "Time from a request for inference to its answer, over HTTP and gRPC",
        )
        for (model, status), histogram in list(self._histograms.items()):
            histogram.add_to(family, {"model": model, "status": str(status)})
        return family
