"""Which of those who wait go into the next batch, and when.

Source: `ModelDynamicBatching` of model_config.proto; `DynamicBatchScheduler` of Triton's core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fovea_server.scheduling.job import Job


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    Attributes:
        count: how many of those who wait go, from the front; 0 for none yet.
        wait_s: seconds after which to look again, if nobody comes; None to wait for somebody.
    """

    count: int
    wait_s: float | None = None


class Batching(Protocol):
    """A rule for making batches.

    Attributes:
        waits: whether a batch may have to wait for more requests while an engine is idle.
    """

    waits: bool

    def decide(self, waiting: Iterable[Job], now_ns: int) -> Decision:
        """Look at who waits, in order, at `time.monotonic_ns`; there is somebody."""
        ...


class OneByOne:
    """Each request is a batch: models without a batch dimension, or without dynamic batching."""

    waits = False

    def decide(self, waiting: Iterable[Job], now_ns: int) -> Decision:
        """See `Batching`."""
        return Decision(1)


class DynamicBatching:
    """Requests meet in batches.

    Args:
        max_rows: of a batch.
        preferred: sizes that go at once, while the delay is not over; empty for `max_rows`.
        delay_us: how long the first of a batch waits for others while an engine is idle.
    """

    def __init__(self, max_rows: int, preferred: Iterable[int] = (), delay_us: int = 0) -> None:
        self.waits = delay_us > 0
        self._max_rows = max_rows
        self._preferred = frozenset(preferred) or frozenset([max_rows])
        self._largest_preferred = max(self._preferred)
        self._delay_ns = 1000 * delay_us

    def decide(self, waiting: Iterable[Job], now_ns: int) -> Decision:
        """See `Batching`."""
        count = rows = best = 0
        full = False
        first: Job | None = None
        oldest_ns = now_ns
        for job in waiting:
            if first is None:
                first = job
            elif rows + job.rows > self._max_rows or not job.fits(first):
                full = True
                # Past the preferred sizes, so what is here goes as it is.
                best = best or count
                break
            elif rows + job.rows > self._largest_preferred and not best:
                best = count
            count, rows = count + 1, rows + job.rows
            oldest_ns = min(oldest_ns, job.arrived_ns)
            if rows in self._preferred:
                best = count
        left_ns = self._delay_ns - (now_ns - oldest_ns)
        if best and (left_ns > 0 or not self._delay_ns):
            return Decision(best)
        if full or rows >= self._largest_preferred or left_ns <= 0:
            return Decision(count)
        return Decision(0, left_ns / 1e9)
