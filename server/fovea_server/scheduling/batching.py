"""Decides which jobs form a batch, when it runs, and whether it may run on the event loop.

Source: `ModelDynamicBatching` of model_config.proto; `DynamicBatchScheduler` of Triton's core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_server.scheduling.job import Job

# Longest call, in nanoseconds. Passing a call to a thread and back costs about half of the first,
# and more for an image, which asks for the interpreter's lock a dozen times. A call on the event
# loop blocks all other requests meanwhile.
QUICK_NS, QUICK_IMAGE_NS = 200_000, 600_000
# Largest batch; larger ones are rarely quick.
_MAX_BYTES = 64 << 10
# Weight of the newest call on the event loop. One call of half a second ends inline execution.
_SMOOTHING = 1 / 256
# Neighbours on the machine take the caches, and the processor itself: on two cores that four others
# wanted, a call took half as much CPU time again, and far more wall time. Threads suffer as much,
# and a model that went back and forth between both had two thirds of the images/s. So it stays
# inline up to twice the time that opens it, and waits count as a quarter.
_SLACK, _PATIENCE = 2, 4
# Calls in threads that are measured before calls run inline; doubled whenever fewer than `_LONG`
# calls ran inline.
_FEWEST, _MAX = 16, 1 << 16
_LONG = 1000
# A call of so many times the CPU time that opens it, to which interruptions do not add, ends inline
# execution: its time depends on the inputs' contents. Not for good, because some systems count CPU
# time in steps, and once in a hundred thousand calls charge a step.
_HEAVY = 10


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
            elif rows + job.rows > self._max_rows or not job.source.fits(job, first):
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


class InlineExecution:
    """Learns from measured times if a model may run on the event loop.

    CPU time counts: in a thread a call may wait for the interpreter's lock a dozen times, and for
    milliseconds each. Of calls in threads the quickest one counts, of those on the event loop the
    mean. A model that is quick only now and then is tried ever more rarely.

    Args:
        steady: as `Session.steady`; a model that is not steady never runs inline.
        quick_ns: longest call that is to run inline.
    """

    def __init__(self, *, steady: bool, quick_ns: int = QUICK_NS) -> None:
        self._steady = steady
        self._quick_ns = quick_ns
        self._open = False
        self._calls = 0
        self._needed = _FEWEST
        self._least_ns = quick_ns
        self._mean_ns = 0.0

    def takes(self, batch: Iterable[Job]) -> bool:
        """Return True if these jobs, as one batch, may run on the event loop."""
        if not self._open:
            return False
        size = 0
        for job in batch:
            size += job.source.nbytes(job)
        return size <= _MAX_BYTES

    def learn(self, cpu_ns: int, call_ns: int | None = None) -> None:
        """Record the CPU time of a call, and its wall time if it ran on the event loop."""
        self._calls += 1
        if call_ns is None:
            self._least_ns = min(self._least_ns, cpu_ns)
            if self._steady and not self._open and self._calls >= self._needed:
                self._turn(opened=self._least_ns < self._quick_ns)
            return
        spent_ns = min(call_ns, cpu_ns)
        counted_ns = max(spent_ns, call_ns / _PATIENCE)
        self._mean_ns += _SMOOTHING * (counted_ns - self._mean_ns)
        if spent_ns > _HEAVY * self._quick_ns or self._mean_ns > _SLACK * self._quick_ns:
            self._needed = _FEWEST if self._calls > _LONG else min(2 * self._needed, _MAX)
            self._turn(opened=False)

    def _turn(self, *, opened: bool) -> None:
        self._open = opened
        self._calls = 0
        self._mean_ns, self._least_ns = float(self._least_ns), self._quick_ns
