"""Batches of tensor rows, filled by many writers and taken by the owners of an engine.

A batch is a set of preallocated buffers, one per model input. A writer leases a row of the open
batch, writes its tensor straight into it and commits; an owner takes the oldest batch that is
ready. So a row is written once, where the engine reads it. Batches grow while the owners are
busy; an idle owner takes what is there, at once or after `max_delay_s`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import ShuttingDown
from fovea_server.images.job import ImageJob


@dataclass(slots=True, eq=False)
class Batch:
    """One set of input buffers, the number of rows in use, and the images that were written."""

    buffers: dict[str, Array]
    rows: int = 0
    jobs: dict[int, ImageJob] = field(default_factory=dict)
    unwritten: int = 0
    opened_at: float = 0.0

    def feeds(self) -> dict[str, Array]:
        """Return the rows in use, as views for `Session.infer`."""
        return {name: buffer[: self.rows] for name, buffer in self.buffers.items()}

    def drop_unwanted(self) -> None:
        """Keep only the rows of images that a caller still waits for, and close the gaps."""
        kept = [(row, job) for row, job in sorted(self.jobs.items()) if job.wanted()]
        for row, (old, _) in enumerate(kept):
            if row != old:
                for buffer in self.buffers.values():
                    buffer[row] = buffer[old]
        self.jobs = {row: job for row, (_, job) in enumerate(kept)}
        self.rows = len(kept)


class Batcher:
    """Hands out rows to writers and batches to owners.

    Args:
        inputs: the model's inputs; every dimension but the first is fixed.
        max_batch: rows in a batch.
        batches: number of batches; this bounds memory and how far writers run ahead.
        max_delay_s: how long a batch that is not full waits for more rows.
    """

    def __init__(
        self, inputs: Sequence[TensorSpec], *, max_batch: int, batches: int, max_delay_s: float
    ) -> None:
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._changed = threading.Condition()
        self._free = [
            Batch({s.name: np.zeros((max_batch, *s.shape[1:]), s.numpy_dtype) for s in inputs})
            for _ in range(batches)
        ]
        # Only the last batch may be open to writers; all before it are full.
        self._queue: deque[Batch] = deque()
        self._closed = False

    def lease(self) -> tuple[Batch, int]:
        """Lease a row of the open batch, or of a new one; ShuttingDown once closed.

        Waits while no batch is free.
        """
        with self._changed:
            while True:
                if self._closed:
                    raise ShuttingDown("the model is being unloaded")
                if not self._queue or self._queue[-1].rows == self._max_batch:
                    if not self._free:
                        self._changed.wait()
                        continue
                    self._queue.append(self._free.pop())
                    self._queue[-1].opened_at = time.monotonic()
                batch = self._queue[-1]
                batch.rows += 1
                batch.unwritten += 1
                return batch, batch.rows - 1

    def commit(self, batch: Batch, row: int, job: ImageJob | None) -> None:
        """Mark a row as written; with None for the job it is dropped instead."""
        with self._changed:
            if job is not None:
                batch.jobs[row] = job
            batch.unwritten -= 1
            self._changed.notify_all()

    def take(self) -> Batch | None:
        """Take the oldest batch that is ready; waits for one. None once closed and drained.

        Images that are no longer wanted are dropped; a batch of only such is recycled.
        """
        while True:
            with self._changed:
                batch = self._next_ready()
                if batch is None:
                    return None
            batch.drop_unwanted()
            if batch.jobs:
                return batch
            self.release(batch)

    def release(self, batch: Batch) -> None:
        """Return a taken batch; its buffers are used again."""
        batch.jobs, batch.rows = {}, 0
        with self._changed:
            self._free.append(batch)
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further leases; owners drain the queue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_ready(self) -> Batch | None:
        while True:
            wait_s: float | None = None
            for batch in self._queue:
                if batch.unwritten:
                    continue
                full = batch.rows == self._max_batch or batch is not self._queue[-1]
                age = time.monotonic() - batch.opened_at
                if full or self._closed or age >= self._max_delay_s:
                    self._queue.remove(batch)
                    return batch
                wait_s = self._max_delay_s - age
            if self._closed and not self._queue:
                return None
            self._changed.wait(wait_s)
