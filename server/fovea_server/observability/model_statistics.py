"""The counters of a model, as Triton's statistics extension defines them.

Source: "Statistics Extension" of Triton's protocol; the metrics families count the same things.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from fovea_server.observability.stages import Stages, StageTimes


class FailureReason(StrEnum):
    """Label of `nv_inference_request_failure`."""

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
        """Add an event."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Counters of one version of one model; safe in any thread."""

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

    def executed(self, rows: int, times: StageTimes) -> None:
        """Count one execution of a batch of `rows`."""
        with self._lock:
            self.execution_count += 1
            batch = self.batches[rows]
            batch.compute_input.add(times.input)
            batch.compute_infer.add(times.infer)
            batch.compute_output.add(times.output)

    def computed(self, rows: int) -> None:
        """Count parts of an image, which is counted by `succeeded` once all are there."""
        with self._lock:
            self.inference_count += rows

    def succeeded(self, rows: int, total_ns: int, times: StageTimes) -> None:
        """Count a request of `rows` that the engine answered."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.inference_count += rows
            self.success.add(total_ns)
            self.queue.add(times.queue)
            self.compute_input.add(times.input)
            self.compute_infer.add(times.infer)
            self.compute_output.add(times.output)

    def failed(self, total_ns: int, reason: FailureReason) -> None:
        """Count a request that failed."""
        with self._lock:
            self.fail.add(total_ns)
            self.failures[reason] += 1

    def hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """Count a request that the response cache answered."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.success.add(total_ns)
            self.queue.add(queue_ns)
            self.cache_hit.add(lookup_ns)

    def batch_sizes(self) -> dict[int, int]:
        """Return how many executions there were of each number of rows."""
        with self._lock:
            return {rows: batch.compute_infer.count for rows, batch in self.batches.items()}

    def missed(self, ns: int) -> None:
        """Count a cache miss; `ns` is the time of lookup and insertion."""
        with self._lock:
            self.cache_miss.add(ns)
