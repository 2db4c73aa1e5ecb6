"""What a model has done, counted as Triton's statistics extension counts it.

Source: "Statistics Extension" of Triton's protocol; the metrics families count the same things.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FailureReason(StrEnum):
    """Label of `nv_inference_request_failure`."""

    OTHER = "OTHER"
    CANCELED = "CANCELED"
    REJECTED = "REJECTED"
    BACKEND = "BACKEND"


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took in all, nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """It happened again."""
        self.count += count
        self.ns += ns


class Spans(NamedTuple):
    """Where the time of one request or execution went, nanoseconds.

    Attributes:
        queue: waiting for an engine; 0 for executions.
        compute_input: making the batch.
        compute_infer: in the engine.
        compute_output: taking the results apart.
    """

    queue: int = 0
    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Counters of one version of one model; any thread may add."""

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

    def executed(self, rows: int, spans: Spans) -> None:
        """The engine ran once, for so many rows in all."""
        with self._lock:
            self.execution_count += 1
            batch = self.batches[rows]
            batch.compute_input.add(spans.compute_input)
            batch.compute_infer.add(spans.compute_infer)
            batch.compute_output.add(spans.compute_output)

    def succeeded(self, rows: int, total_ns: int, spans: Spans) -> None:
        """A request of so many rows was answered by the engine."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.inference_count += rows
            self.success.add(total_ns)
            self.queue.add(spans.queue)
            self.compute_input.add(spans.compute_input)
            self.compute_infer.add(spans.compute_infer)
            self.compute_output.add(spans.compute_output)

    def failed(self, total_ns: int, reason: FailureReason) -> None:
        """A request got an error."""
        with self._lock:
            self.fail.add(total_ns)
            self.failures[reason] += 1

    def hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request was answered by the response cache."""
        with self._lock:
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.success.add(total_ns)
            self.queue.add(queue_ns)
            self.cache_hit.add(lookup_ns)

    def missed(self, ns: int) -> None:
        """The response cache did not have an answer: lookup and insertion took so long."""
        with self._lock:
            self.cache_miss.add(ns)
