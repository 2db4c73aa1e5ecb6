"""How long requests take from their first byte to their answer."""

from __future__ import annotations

from collections.abc import Container

from fovea_server.statistics.family import Family
from fovea_server.statistics.histogram import Histogram

_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
# Each costs memory and time of every scrape, and models may come and go under any name.
_MOST_HISTOGRAMS = 4096


class Durations:
    """A histogram for each model and status; one thread adds, any may read.

    There is a most of them: then the oldest begins again from nothing.

    Args:
        models: the names that become labels; a client's other names count as "".
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._histograms: dict[tuple[str, int | str], Histogram] = {}

    def observe(self, model: str, status: int | str, seconds: float) -> None:
        """A request was answered."""
        histogram = self._histograms.get((model, status))
        if histogram is None:
            key = (model if model in self._models else "", status)
            histogram = self._histograms.setdefault(key, Histogram(_BOUNDS_S))
            if len(self._histograms) > _MOST_HISTOGRAMS:
                del self._histograms[next(iter(self._histograms))]
        histogram.observe(seconds)

    def family(self) -> Family:
        """All of them."""
        family = Family(
            "fovea_request_duration_seconds",
            "histogram",
            "Time from a request for inference to its answer, over HTTP and gRPC",
        )
        for (model, status), histogram in list(self._histograms.items()):
            histogram.add_to(family, {"model": model, "status": str(status)})
        return family
