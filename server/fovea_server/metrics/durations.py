"""How long requests take from their first byte to their answer."""

from __future__ import annotations

from fovea_server.metrics.histogram import Histogram
from fovea_server.metrics.text import Family

_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Durations:
    """A histogram for each model and status; of one thread, any may read."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def observe(self, model: str, status: str, seconds: float) -> None:
        """A request was answered."""
        key = (model, status)
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = Histogram(_BOUNDS_S)
        histogram.observe(seconds)

    def family(self) -> Family:
        """All of them."""
        family = Family(
            "fovea_request_duration_seconds",
            "histogram",
            "Time from a request for inference to its answer, over HTTP and gRPC",
        )
        for (model, status), histogram in list(self._histograms.items()):
            histogram.add_to(family, {"model": model, "status": status})
        return family
