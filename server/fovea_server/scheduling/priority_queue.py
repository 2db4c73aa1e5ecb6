"""Who waits for the engine, and in what order.

Source: `ModelQueuePolicy` and `priority_levels` of model_config.proto; `PriorityQueue` of Triton's
core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from fovea_engines.repository.triton_messages import model_config_messages
from fovea_server.scheduling.job import Job


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a queue treats who waits in it.

    Attributes:
        max_size: most that wait; 0 for any number.
        timeout_us: microseconds that each may wait; 0 for ever.
        rejects: at the end of that time: refuse it, or else let it wait behind all others.
        overridable: a request may ask for less time.
    """

    max_size: int = 0
    timeout_us: int = 0
    rejects: bool = True
    overridable: bool = False

    @classmethod
    def of(cls, message: Any) -> Self:
        """From a `ModelQueuePolicy` message."""
        return cls(
            message.max_queue_size,
            message.default_timeout_microseconds,
            message.timeout_action == model_config_messages().ModelQueuePolicy.REJECT,
            message.allow_timeout_override,
        )

    def timeout_of(self, asked_us: int) -> int:
        """Microseconds that a request may wait that asks for so many (0 for nothing asked)."""
        if self.overridable and 0 < asked_us < self.timeout_us:
            return asked_us
        return self.timeout_us


@dataclass(slots=True)
class _Level:
    policy: QueuePolicy
    jobs: deque[Job] = field(default_factory=deque)
    delayed: deque[Job] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.jobs) + len(self.delayed)


class PriorityQueue:
    """One queue a priority level; the highest priority first, and in it who came first.

    Args:
        policy_of: a priority level's policy.
        levels: how many priorities there are, 1 the highest; 0 where they do not count.
        default_level: of requests that ask for none, or for one that there is not.
    """

    def __init__(
        self,
        policy_of: Callable[[int], QueuePolicy] = lambda level: QueuePolicy(),
        levels: int = 0,
        default_level: int = 0,
    ) -> None:
        self._policy_of = policy_of
        self._number_of_levels = levels
        self._default_level = default_level
        self._levels: dict[int, _Level] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        for level in self._levels.values():
            yield from level.jobs
            yield from level.delayed

    def add(self, job: Job) -> QueuePolicy | None:
        """Let it wait.

        Returns:
            The policy for its wait; None if there is no room.
        """
        level = self._level_of(job)
        policy = level.policy
        if policy.max_size and len(level) >= policy.max_size:
            return None
        level.jobs.append(job)
        self._size += 1
        return policy

    def take(self, count: int) -> list[Job]:
        """The first so many; they wait no longer."""
        taken: list[Job] = []
        for level in self._levels.values():
            for jobs in (level.jobs, level.delayed):
                while jobs and len(taken) < count:
                    taken.append(jobs.popleft())
        self._size -= len(taken)
        return taken

    def discard(self, job: Job) -> bool:
        """Let it wait no longer; whether it did."""
        level = self._level_of(job)
        for jobs in (level.jobs, level.delayed):
            if job in jobs:
                jobs.remove(job)
                self._size -= 1
                return True
        return False

    def delay(self, job: Job) -> None:
        """Let it wait behind all others of its priority."""
        level = self._level_of(job)
        level.jobs.remove(job)
        level.delayed.append(job)

    def _level_of(self, job: Job) -> _Level:
        asked = job.request.priority
        number = asked if 1 <= asked <= self._number_of_levels else self._default_level
        level = self._levels.get(number)
        if level is None:
            self._levels[number] = level = _Level(self._policy_of(number))
            self._levels = dict(sorted(self._levels.items()))
        return level
