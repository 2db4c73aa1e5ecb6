"""The batches that the requests in a queue form.

Source: `ModelDynamicBatching` of model_config.proto; `DynamicBatchScheduler` of Triton's core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_server.scheduling.job import Job


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step of a queue.

    Attributes:
        count: requests to take from the front of the queue; 0 for none yet.
        wait_s: seconds until the next decision if no request arrives; None for no limit.
    """

    count: int
    wait_s: float | None = None


class DynamicBatching:
    """Combines requests into batches; with `max_rows` of 1, each request is a batch.

    Args:
        preferred: batch sizes that run at once, before the delay is over; empty for `max_rows`.
        delay_us: microseconds that the first request waits for others while an engine is idle.

    Attributes:
        waits: a batch may wait for more requests while an engine is idle.
    """

    def __init__(self, max_rows: int, preferred: Iterable[int] = (), delay_us: int = 0) -> None:
        self.waits = delay_us > 0
        self._max_rows = max_rows
        self._preferred = frozenset(preferred) or frozenset([max_rows])
        self._largest_preferred = max(self._preferred)
        self._delay_ns = 1000 * delay_us

    def decide(self, waiting: Iterable[Job], now_ns: int) -> Decision:
        """Decide from the queue, in order and not empty, and `time.monotonic_ns`."""
        count = rows = best = 0
        full = False
        first: Job | None = None
        oldest_ns = now_ns
        for job in waiting:
            if first is None:
                first = job
            elif rows + job.rows > self._max_rows or not job.fits(first):
                full = True
                # Larger than every preferred size: the batch runs as it is.
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
