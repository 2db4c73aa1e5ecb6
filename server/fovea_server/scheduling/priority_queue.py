"""The queue of requests that wait for the engine, and the batches that they form.

Source: `ModelQueuePolicy`, `priority_levels` and `ModelDynamicBatching` of model_config.proto;
`PriorityQueue` and `DynamicBatchScheduler` of Triton's core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching, ModelQueuePolicy

if TYPE_CHECKING:
    from fovea_server.scheduling.job import Job


@dataclass(slots=True)
class _Level:
    policy: ModelQueuePolicy
    jobs: deque[Job] = field(default_factory=deque)
    delayed: deque[Job] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.jobs) + len(self.delayed)


class PriorityQueue:
    """Orders requests by priority level, and within a level by arrival."""

    def __init__(self, batching: ModelDynamicBatching) -> None:
        self._batching = batching
        self._levels: dict[int, _Level] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        for level in self._levels.values():
            yield from level.jobs
            yield from level.delayed

    def add(self, jobs: Sequence[Job]) -> ModelQueuePolicy | None:
        """Add the jobs of one request, all or none.

        Returns:
            The policy for their wait; None if the queue is full.
        """
        level = self._level_of(jobs[0])
        policy = level.policy
        if policy.max_queue_size and len(level) + len(jobs) > policy.max_queue_size:
            return None
        level.jobs += jobs
        self._size += len(jobs)
        return policy

    def discard(self, job: Job) -> bool:
        """Remove a job; return False if it was not in the queue."""
        level = self._level_of(job)
        for jobs in (level.jobs, level.delayed):
            with suppress(ValueError):
                jobs.remove(job)
                self._size -= 1
                return True
        return False

    def delay(self, job: Job) -> None:
        """Move a job that is in the queue behind all others of its priority."""
        level = self._level_of(job)
        if job in level.jobs:
            level.jobs.remove(job)
            level.delayed.append(job)

    def _level_of(self, job: Job) -> _Level:
        batching, asked = self._batching, job.request.priority
        has_level = 1 <= asked <= batching.priority_levels
        number = asked if has_level else batching.default_priority_level
        level = self._levels.get(number)
        if level is None:
            default = batching.default_queue_policy
            level = _Level(batching.priority_queue_policy.get(number, default))
            self._levels[number] = level
            self._levels = dict(sorted(self._levels.items()))
        return level


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
