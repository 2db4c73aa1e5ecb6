"""The counters of a model, as defined by Triton's statistics extension.

Source: "Statistics Extension" of Triton's protocol. The metric families use the same counters.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fovea_server.observability.histogram import Family, Histogram, Labels

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class StageTimes(NamedTuple):
    """The durations of the stages of a request, an image or a batch, in nanoseconds.

    Attributes:
        queue: waiting for the engine; 0 for a batch.
        decode: decoding an image file to pixels.
        prepare: making the input: letterboxing an image, or joining the tensors of several
            requests.
        infer: computing in the engine.
        output: splitting the outputs; for an image, decoding the outputs and encoding the result.
    """

    queue: int = 0
    decode: int = 0
    prepare: int = 0
    infer: int = 0
    output: int = 0

    @property
    def input(self) -> int:
        """The time for making the engine's input: `decode` plus `prepare`."""
        return self.decode + self.prepare

    def of_tensors(self) -> dict[str, int]:
        """Return the durations of a tensor request, by Triton's names of the stages."""
        return {
            "queue": self.queue,
            "input": self.input,
            "infer": self.infer,
            "output": self.output,
        }

    def of_image(self) -> dict[str, int]:
        """Return the durations of an image, by the names that the stages have in responses."""
        return {
            "decode": self.decode,
            "letterbox": self.prepare,
            "queue": self.queue,
            "infer": self.infer,
            "postprocess": self.output,
        }


NO_TIMES = StageTimes()


def longest(times: Iterable[StageTimes]) -> StageTimes:
    """Return the longest duration of each stage; 0 if `times` is empty."""
    several = list(times)
    if len(several) == 1:
        return several[0]
    return StageTimes(*map(max, zip(NO_TIMES, *several, strict=True)))


class Stages:
    """Histograms of the time that images spend in each stage; thread-safe."""

    def __init__(self) -> None:
        self._histograms = {stage: Histogram(_BOUNDS_S) for stage in NO_TIMES.of_image()}

    def observe(self, times: StageTimes) -> None:
        """Add the durations of an image."""
        for histogram, ns in zip(self._histograms.values(), times.of_image().values(), strict=True):
            histogram.observe(ns / 1e9)

    def add_to(self, family: Family, labels: Labels) -> None:
        """Add the histograms to the family of `stage_family`, with the stage as a label."""
        for stage, histogram in self._histograms.items():
            histogram.add_to(family, {**labels, "stage": stage})


def stage_family() -> Family:
    """Make the family of stage durations, without samples."""
    return Family(
        "fovea_stage_duration_seconds",
        "histogram",
        "Time that images spend in each stage of a request, in seconds",
    )


class FailureReason(StrEnum):
    """Values of the label `reason` of `nv_inference_request_failure`."""

    OTHER = "OTHER"
    CANCELED = "CANCELED"
    REJECTED = "REJECTED"
    BACKEND = "BACKEND"


@dataclass(slots=True)
class Duration:
    """A count of events, and their total time in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Add an event that took `ns` nanoseconds."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Durations of the executions with one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Counters of one version of one model; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.batches: defaultdict[int, BatchStatistics] = defaultdict(BatchStatistics)
        self.failures: Counter[FailureReason] = Counter()
        self.stages = Stages()

    def count_execution(self, rows: int, times: StageTimes) -> None:
        """Count one execution of a batch of `rows` rows."""
        with self._lock:
            self.execution_count += 1
            batch = self.batches[rows]
            batch.compute_input.add(times.input)
            batch.compute_infer.add(times.infer)
            batch.compute_output.add(times.output)

    def count_parts(self, rows: int) -> None:
        """Count the parts of an image as inferences.

        `count_success` counts the image itself later.
        """
        with self._lock:
            self.inference_count += rows

    def count_success(self, rows: int, total_ns: int, times: StageTimes) -> None:
        """Count a request of `rows` rows that the engine has completed."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.inference_count += rows
            self.success.add(total_ns)
            self.queue.add(times.queue)
            self.compute_input.add(times.input)
            self.compute_infer.add(times.infer)
            self.compute_output.add(times.output)

    def count_failure(self, total_ns: int, reason: FailureReason) -> None:
        """Count a failed request."""
        with self._lock:
            self.fail.add(total_ns)
            self.failures[reason] += 1

    def count_cache_hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """Count a request whose response came from the cache."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.success.add(total_ns)
            self.queue.add(queue_ns)
            self.cache_hit.add(lookup_ns)

    def batch_sizes(self) -> dict[int, int]:
        """Return the number of executions for each batch size."""
        with self._lock:
            return {rows: batch.compute_infer.count for rows, batch in self.batches.items()}

    def count_cache_miss(self, ns: int) -> None:
        """Count a request without a cached response.

        `ns` is the time of its lookup and insertion.
        """
        with self._lock:
            self.cache_miss.add(ns)
