"""The queue of a model, with its limits and the number of running executions; thread-safe.

Source of the priority levels: `ModelQueuePolicy` and `priority_levels` of model_config.proto;
`PriorityQueue` of Triton's core.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice

from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching, ModelQueuePolicy
from fovea_preprocess.errors import ShuttingDown
from fovea_server.scheduling.job import Job, Source

# Weight of the newest response in the mean interval between responses. The mean depends mostly on
# about the last twenty responses.
_SMOOTHING = 0.1


# Number of remembered clients at which clients without waiting jobs are forgotten.
_REMEMBERED = 1024


@dataclass(slots=True)
class _Level:
    """The jobs of one priority level, in an order that shares the engine fairly among clients.

    Clients take turns by number of rows, and the jobs of each client keep their order. This is
    start-time fair queueing (Goyal, Vin, Cheng 1996). The turn of a job is the number of rows that
    its client has queued before it. A new client begins at the queue's present turn.
    """

    policy: ModelQueuePolicy
    jobs: deque[Job] = field(default_factory=deque)
    delayed: deque[Job] = field(default_factory=deque)
    now: int = 0
    """Turn of the job that an execution took last."""
    next: dict[str, int] = field(default_factory=dict)
    """Next turn of each client."""

    def add(self, jobs: Sequence[Job]) -> None:
        """Add the jobs of one request. They run in the given order."""
        client = jobs[0].request.client
        turn = max(self.now, self.next.get(client, 0))
        for job in jobs:
            job.turn = turn
            turn += job.rows
        if len(self.next) >= _REMEMBERED:
            self.next = {one: after for one, after in self.next.items() if after > self.now}
        self.next[client] = turn
        in_order = not self.jobs or self.jobs[-1].turn <= jobs[0].turn
        self.jobs += jobs
        if not in_order:
            self.jobs = deque(sorted(self.jobs, key=lambda job: job.turn))


class JobQueue:
    """Jobs that wait for one engine, ordered by priority, then by client turn, then by arrival.

    Args:
        batching: the priority levels and their queue policies.
        limit: largest number of accepted jobs without a response.
        side_by_side: largest number of parallel executions.

    Attributes:
        accepted: number of accepted jobs without a response.
        running: number of executions that the engine is computing.
    """

    def __init__(self, batching: ModelDynamicBatching, *, limit: int, side_by_side: int) -> None:
        self.accepted = 0
        self.running = 0
        self._batching = batching
        self._limit = limit
        self._side_by_side = side_by_side
        self._lock = threading.Lock()
        self._levels: dict[int, _Level] = {}
        self._size = 0
        self._ahead = 0
        self._room_ahead = threading.Condition(self._lock)
        self._last_answer = self._interval_s = 0.0
        self._closed = False

    def __len__(self) -> int:
        return self._size

    def enter(self, jobs: Sequence[Job]) -> ModelQueuePolicy:
        """Accept all jobs of one request, or none of them.

        Returns:
            The queue policy that limits the time for which the jobs wait.

        Raises:
            QueueFull: the queue has no room for the jobs now.
            InvalidRequest: the request has more jobs than the queue can ever hold.
            ShuttingDown: the queue is closed.
        """
        count = len(jobs)
        with self._lock:
            if self._closed:
                raise ShuttingDown("the model is being unloaded: send the request again later")
            level = self._level_of(jobs[0])
            waiting, most = len(level.jobs) + len(level.delayed), level.policy.max_queue_size
            if count > self._limit or 0 < most < count:
                raise jobs[0].too_many_error(count, min(self._limit, most or self._limit))
            if self.accepted + count > self._limit or 0 < most < waiting + count:
                raise jobs[0].queue_full_error(self.accepted, self.accepted * self._interval_s)
            if not self.accepted:
                # The clock restarts here, because an idle period must not count as the interval
                # between two responses.
                self._last_answer = time.monotonic()
            level.add(jobs)
            self._size += count
            self.accepted += count
            if jobs[0].source.ahead:
                self._room_ahead.notify(count)
        return level.policy

    def next(self) -> tuple[list[Job], float | None]:
        """Take the next batch for an execution; call `done` after the engine has computed it.

        Returns:
            The jobs of the batch; the list is empty if no job can run now. The second value is the
            time in seconds until a waiting batch must run; it is None if no batch waits for more
            jobs.
        """
        waits: list[float] = []
        seen: list[Source] = []
        with self._lock:
            if self.running >= self._side_by_side:
                return [], None
            for first in self._waiting():
                source = first.source
                if not first.prepared or source in seen:
                    continue
                decision = source.batching.decide(self._ready(source), time.monotonic_ns())
                if decision.count:
                    jobs = list(islice(self._ready(source), decision.count))
                    for job in jobs:
                        self._remove(job)
                        level = self._level_of(job)
                        level.now = max(level.now, job.turn)
                    self.running += 1
                    return jobs, None
                # A batch that waits for more jobs of its source does not delay jobs of another
                # source.
                seen.append(source)
                if decision.wait_s is not None:
                    waits.append(decision.wait_s)
        return [], min(waits, default=None)

    def done(self) -> None:
        """Record the end of an execution: the engine has computed its batch."""
        with self._lock:
            self.running -= 1

    def count_answer(self, *, served: bool) -> None:
        """Count a completed job. `served` is False for a job that failed or was cancelled."""
        now = time.monotonic()
        with self._lock:
            self.accepted -= 1
            # Failed and cancelled jobs take no time, so they do not count in the mean interval.
            if served:
                weight = _SMOOTHING if self._interval_s else 1.0
                self._interval_s += weight * (now - self._last_answer - self._interval_s)
                self._last_answer = now

    def is_alone(self, jobs: Sequence[Job]) -> bool:
        """Return whether all accepted jobs are in this list."""
        return self.accepted <= len(jobs)

    def withdraw(self, job: Job) -> bool:
        """Remove a job from the queue; return False if the job has left the queue already."""
        with self._lock:
            return self._remove(job)

    def delay(self, job: Job) -> None:
        """Move a waiting job behind all other jobs of its priority level."""
        with self._lock, suppress(ValueError):
            level = self._level_of(job)
            level.jobs.remove(job)
            level.delayed.append(job)

    def clear(self, *, close: bool = False) -> list[Job]:
        """Remove and return all jobs.

        If `close` is True, the queue also rejects new jobs, and calls of `claim` return None.
        """
        with self._lock:
            jobs = list(self._waiting())
            for job in jobs:
                self._remove(job)
            if close:
                self._closed = True
                self._room_ahead.notify_all()
            return jobs

    def claim(self) -> Job | None:
        """Wait for a job to prepare, mark it as claimed, and return it.

        Return None if the queue closes.
        """
        with self._lock:
            while not self._closed:
                for job in self._waiting():
                    taken = job.claimed or job.place is not None
                    if not taken and self._ahead < job.source.ahead:
                        job.claimed = True
                        self._ahead += 1
                        return job
                self._room_ahead.wait()
        return None

    def _waiting(self) -> Iterator[Job]:
        return chain.from_iterable(
            chain(level.jobs, level.delayed) for level in self._levels.values()
        )

    def _ready(self, source: Source) -> Iterator[Job]:
        return (job for job in self._waiting() if job.source is source and job.prepared)

    def _remove(self, job: Job) -> bool:
        level = self._level_of(job)
        for jobs in (level.jobs, level.delayed):
            with suppress(ValueError):
                jobs.remove(job)
                self._size -= 1
                if job.claimed and job.source.ahead:
                    self._ahead -= 1
                    self._room_ahead.notify()
                return True
        return False

    def _level_of(self, job: Job) -> _Level:
        batching, level_number = self._batching, job.request.priority
        has_level = 1 <= level_number <= batching.priority_levels
        number = level_number if has_level else batching.default_priority_level
        level = self._levels.get(number)
        if level is None:
            default = batching.default_queue_policy
            level = _Level(batching.priority_queue_policy.get(number, default))
            self._levels[number] = level
            self._levels = dict(sorted(self._levels.items()))
        return level
