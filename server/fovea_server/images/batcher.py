"""Batches of tensor rows, filled by many writers and taken by the owners of an engine.

A batch is a set of preallocated buffers, one per model input. A writer leases rows of the open
batch, writes its tensor straight into them and commits; an owner takes the oldest batch that is
ready. So a row is written once, where the engine reads it. Batches grow while the owners are
busy; an idle owner takes what is there, at once or after `max_delay_s`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import ShuttingDown

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class BatchEntry(Generic[T]):
    """Rows `start` to `start + rows` of a batch, and their owner (None until committed)."""

    start: int
    rows: int
    owner: T | None = None


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """One set of input buffers and the entries in it."""

    buffers: dict[str, Array]
    entries: list[BatchEntry[T]] = field(default_factory=list)
    rows: int = 0
    unwritten: int = 0
    opened_at: float = 0.0

    def feeds(self) -> dict[str, Array]:
        """Return the rows in use, as views for `Session.infer`."""
        return {name: buffer[: self.rows] for name, buffer in self.buffers.items()}

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drop the entries that are not wanted, and close the gaps."""
        kept = [e for e in self.entries if e.owner is not None and wanted(e.owner)]
        rows = 0
        for entry in kept:
            if entry.start != rows:
                for buffer in self.buffers.values():
                    buffer[rows : rows + entry.rows] = buffer[
                        entry.start : entry.start + entry.rows
                    ]
                entry.start = rows
            rows += entry.rows
        self.entries, self.rows = kept, rows


@dataclass(frozen=True, slots=True, eq=False)
class Lease(Generic[T]):
    """The right to write some rows of a batch."""

    batch: Batch[T]
    entry: BatchEntry[T]

    def rows(self, name: str) -> Array:
        """Return the leased rows of one input, [rows, ...], to write into."""
        return self.batch.buffers[name][self.entry.start : self.entry.start + self.entry.rows]


class Batcher(Generic[T]):
    """Hands out rows to writers and batches to owners.

    Args:
        inputs: the model's inputs; every dimension but the first is fixed.
        max_batch: rows in a batch.
        batches: number of batches; this bounds memory and how far writers run ahead.
        max_delay_s: how long a batch that is not full waits for more rows.
        wanted: returns True while an entry's owner still waits for it.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        *,
        max_batch: int,
        batches: int,
        max_delay_s: float,
        wanted: Callable[[T], bool],
    ) -> None:
        self.max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._wanted = wanted
        self._changed = threading.Condition()
        self._free: list[Batch[T]] = [
            Batch({s.name: np.zeros((max_batch, *s.shape[1:]), s.numpy_dtype) for s in inputs})
            for _ in range(batches)
        ]
        # Only the last batch may be open to writers; all before it are full.
        self._queue: deque[Batch[T]] = deque()
        self._closed = False

    def lease(self, rows: int = 1) -> Lease[T]:
        """Lease rows of the open batch, or of a new one; waits while none is free.

        Raises:
            ValueError: more rows than a batch has.
            ShuttingDown: the batcher was closed.
        """
        if not 1 <= rows <= self.max_batch:
            raise ValueError(f"{rows} rows do not fit a batch of {self.max_batch}")
        with self._changed:
            while True:
                if self._closed:
                    raise ShuttingDown("the model is being unloaded")
                batch = self._queue[-1] if self._queue else None
                if batch is None or batch.rows + rows > self.max_batch:
                    if not self._free:
                        self._changed.wait()
                        continue
                    batch = self._free.pop()
                    batch.opened_at = time.monotonic()
                    self._queue.append(batch)
                entry: BatchEntry[T] = BatchEntry(batch.rows, rows)
                batch.entries.append(entry)
                batch.rows += rows
                batch.unwritten += 1
                return Lease(batch, entry)

    def commit(self, lease: Lease[T], owner: T | None) -> None:
        """Mark rows as written; with None for the owner they are dropped instead."""
        with self._changed:
            lease.entry.owner = owner
            lease.batch.unwritten -= 1
            self._changed.notify_all()

    def take(self) -> Batch[T] | None:
        """Take the oldest batch that is ready; waits for one. None once closed and drained.

        Entries that are no longer wanted are dropped; a batch of only such is recycled.
        """
        while True:
            with self._changed:
                batch = self._next_ready()
                if batch is None:
                    return None
            batch.keep(self._wanted)
            if batch.entries:
                return batch
            self.release(batch)

    def release(self, batch: Batch[T]) -> None:
        """Return a taken batch; its buffers are used again."""
        batch.entries, batch.rows = [], 0
        with self._changed:
            self._free.append(batch)
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further leases; owners drain the queue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_ready(self) -> Batch[T] | None:
        while True:
            wait_s: float | None = None
            for batch in self._queue:
                if batch.unwritten:
                    continue
                full = batch.rows == self.max_batch or batch is not self._queue[-1]
                age = time.monotonic() - batch.opened_at
                if full or self._closed or age >= self._max_delay_s:
                    self._queue.remove(batch)
                    return batch
                wait_s = self._max_delay_s - age
            if self._closed and not self._queue:
                return None
            self._changed.wait(wait_s)
