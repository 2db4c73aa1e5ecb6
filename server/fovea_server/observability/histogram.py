"""Metric families, histograms, and the durations of requests from first byte to response."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Literal

Labels = Mapping[str, str]

_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_SUCCESS = (200, "OK")  # success, as HTTP and as gRPC report it
# Largest number of histograms. Each histogram takes memory, and time in every scrape, and clients
# may load and unload models under any name.
_MAX_HISTOGRAMS = 4096


@dataclass(slots=True)
class Family:
    """A metric family; each sample is a tuple (suffix of the name, labels, value)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, labels: Labels, value: float, suffix: str = "") -> None:
        """Add a sample."""
        self.samples.append((suffix, labels, value))


def gauge(name: str, text: str, value: float) -> Family:
    """Make a gauge with a single value."""
    return Family(name, "gauge", text, [("", {}, value)])


def render(families: Iterable[Family]) -> str:
    """Return the families in the text format of Prometheus, including families without samples."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            lines.append(f"{family.name}{suffix}{_braces(labels)} {value}")
    return "\n".join(lines) + "\n"


def label_name(text: str) -> str:
    """Convert a text to a label name: replace all but letters, digits and "_" with "_"."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Histogram:
    """Counts values in buckets with ascending upper bounds; thread-safe."""

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

    def read(self) -> tuple[dict[str, int], float]:
        """Return the number of values up to each bound, and the sum of all values."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        return dict(zip((*map(str, self._bounds), "+Inf"), counts, strict=True)), total

    def add_to(self, family: Family, labels: Labels) -> None:
        """Add the samples of the histogram, with these labels, to a family."""
        buckets, total = self.read()
        for bound, count in buckets.items():
            family.add({**labels, "le": bound}, count, "_bucket")
        family.add(labels, buckets["+Inf"], "_count")
        family.add(labels, total, "_sum")


class Durations:
    """Histograms of durations by model and status. One thread may add values; any thread may read.

    Only names in `models` become labels; for other names that clients send, the label is "". If
    there are too many histograms, the oldest histogram is dropped, and its time series starts again
    at 0.
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._histograms: dict[tuple[str, int | str], Histogram] = {}

    def observe(self, model: str, status: int | str, seconds: float) -> None:
        """Count the duration of a finished request."""
        histogram = self._histograms.get((model, status))
        if histogram is None:
            key = (model if model in self._models else "", status)
            histogram = self._histograms.setdefault(key, Histogram(_BOUNDS_S))
            if len(self._histograms) > _MAX_HISTOGRAMS:
                del self._histograms[next(iter(self._histograms))]
        histogram.observe(seconds)

    def of(self, model: str) -> dict[str, int]:
        """Return counts of a model's successful requests, cumulative by duration in seconds."""
        counts: Counter[str] = Counter()
        for (name, status), histogram in list(self._histograms.items()):
            if name == model and status in _SUCCESS:
                counts.update(histogram.read()[0])
        return dict(counts)

    def family(self, served: Iterable[str] = ()) -> Family:
        """Return the family of all histograms.

        The counts of successful requests start at 0 for each model in `served`. Prometheus computes
        an increase between two samples, so it would miss the first requests of a series that began
        above 0.
        """
        family = Family(
            "fovea_request_duration_seconds",
            "histogram",
            "Duration of inference requests, over HTTP and gRPC",
        )
        at_zero = {key: Histogram(_BOUNDS_S) for key in product(served, _SUCCESS)}
        for (model, status), histogram in (at_zero | self._histograms).items():
            histogram.add_to(family, {"model": model, "status": str(status)})
        return family
