"""Decides which jobs form a batch, when the batch runs, and whether the event loop may run it.

Source: `ModelDynamicBatching` of model_config.proto; `DynamicBatchScheduler` of Triton's core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_server.scheduling.job import Job

# Longest calls, in nanoseconds, that may run on the event loop: for tensors, and for one image.
# Passing a call to a thread and its result back takes about half of the first limit. For an image
# the thread costs more time, because the call acquires the interpreter's lock a dozen times. A call
# on the event loop blocks all other requests while it runs.
QUICK_NS, QUICK_IMAGE_NS = 200_000, 600_000
# Largest total size, in bytes, of the inputs of a batch on the event loop. Larger batches are
# rarely short enough.
_MAX_BYTES = 64 << 10
# Weight of the newest call in the mean time of calls on the event loop. With this weight, a single
# call of half a second ends the execution of tensors on the event loop.
_SMOOTHING = 1 / 256
# A model leaves the event loop only if its mean time exceeds `_SLACK` times the limit for moving
# there. The mean uses the wall time divided by `_PATIENCE`. Both factors allow for other processes
# on the same cores: with four of them on two cores, a call took 1.5 times its usual CPU time, and
# far more wall time. Threads would not help, because calls in threads slow down as much. A model
# that switched back and forth lost a third of its throughput.
_SLACK, _PATIENCE = 2, 4
# Number of calls that are measured in threads before a model moves to the event loop: the initial
# number, and the largest. The number doubles if the model has to leave the event loop within
# `_LONG` calls.
_FEWEST, _MAX = 16, 1 << 16
_LONG = 1000
# A model leaves the event loop after a single call whose CPU time exceeds `quick_ns` by this
# factor, because the time of its calls then depends on the content of the inputs. Interruptions by
# other processes do not add to CPU time. The model may return to the event loop later, because some
# systems count CPU time in steps, and charge a whole step to about one call in a hundred thousand.
_HEAVY = 10


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about the next batch of a queue.

    Attributes:
        count: number of jobs to take from the front of the queue; 0 to take none yet.
        wait_s: seconds until the next decision if no job arrives before; None to decide again only
            when a job arrives.
    """

    count: int
    wait_s: float | None = None


class DynamicBatching:
    """Combines jobs into batches; if `max_rows` is 1, each job is a batch.

    Args:
        max_rows: largest batch size, in rows. A row is one entry of the batch dimension.
        preferred: batch sizes that run immediately, before the delay is over; by default only
            `max_rows`.
        delay_us: time in microseconds for which the first job waits for more jobs while an engine
            is idle.

    Attributes:
        waits: True if a batch may wait for more jobs while an engine is idle.
    """

    def __init__(self, max_rows: int, preferred: Iterable[int] = (), delay_us: int = 0) -> None:
        self.waits = delay_us > 0
        self._max_rows = max_rows
        self._preferred = frozenset(preferred) or frozenset([max_rows])
        self._largest_preferred = max(self._preferred)
        self._delay_ns = 1000 * delay_us

    def decide(self, waiting: Iterable[Job], now_ns: int) -> Decision:
        """Decide how many of the waiting jobs form the next batch.

        Args:
            waiting: prepared jobs of one source, in the order of the queue; at least one.
            now_ns: the present `time.monotonic_ns()`.
        """
        count = rows = best = 0
        full = False
        first: Job | None = None
        oldest_ns = now_ns
        for job in waiting:
            if first is None:
                first = job
            elif rows + job.rows > self._max_rows or not job.source.fits(job, first):
                full = True
                # The batch cannot grow further. If it has reached no preferred size, run all its
                # jobs.
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
    """Decides from measured times whether a model may run on the event loop ("inline").

    Calls in threads are measured in CPU time, because a call in a thread may wait for the
    interpreter's lock a dozen times, each time for milliseconds. A model may run inline if its
    quickest call in a thread is short enough. It stays inline while the mean time of its inline
    calls is short enough. If a model soon has to leave the event loop, more calls are measured
    before it runs inline again.

    Args:
        steady: value of `Session.steady`; a model that is not steady never runs inline.
        quick_ns: longest duration, in nanoseconds, of a call that may run inline.
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
        """Return whether the event loop may run these jobs as one batch."""
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
