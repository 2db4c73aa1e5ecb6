"""Runs one batch: joins its jobs, computes them, and gives each job its part of the outputs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fovea_preprocess.errors import FoveaError, InferenceFailed, NoMemory
from fovea_server.observability.model_statistics import NO_TIMES, StageTimes
from fovea_server.scheduling.job import Job
from fovea_server.scheduling.model_io import Outputs

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs that were taken from a queue together, and the figures of their execution.

    Attributes:
        jobs: all jobs. Each has a result or an `error`, or its caller no longer waits.
        ran: the jobs that the engine computed or failed on.
        rows: number of rows of the jobs in `ran`.
        times: durations of the execution's stages, in nanoseconds.
        cpu_ns: CPU time of the thread that ran the batch, in nanoseconds.
        error: error of the engine, which is also the error of all jobs in `ran`.
    """

    jobs: Sequence[Job]
    ran: Sequence[Job] = ()
    rows: int = 0
    times: StageTimes = NO_TIMES
    cpu_ns: int = 0
    error: FoveaError | None = None


def run(
    name: str,
    jobs: Sequence[Job],
    alone: Callable[[Sequence[Job]], bool],
    computed: Callable[[], None] | None = None,
) -> list[Batch]:
    """Run compatible jobs of one source as a batch; if that fails, run each job by itself.

    Args:
        name: name of the model, for the log.
        jobs: jobs that were taken from the queue.
        alone: returns the argument `alone` of `Session.infer` for the jobs of a batch.
        computed: called once, after the engine has computed the batch.

    Returns:
        The executed batches. After a failed batch of several jobs, each job has its own.
    """
    batch = _run(name, jobs, alone, computed)
    if not isinstance(batch.error, InferenceFailed) or len(batch.ran) == 1:
        return [batch]
    # A single job may be the cause: run each by itself, so that the other jobs succeed.
    single = []
    for job in batch.ran:
        job.error = None
        single.append(_run(name, [job], alone))
    return [Batch([job for job in jobs if job not in batch.ran]), *single]


def _run(
    name: str,
    jobs: Sequence[Job],
    alone: Callable[[Sequence[Job]], bool],
    computed: Callable[[], None] | None = None,
) -> Batch:
    began = computing = done = time.monotonic_ns()
    cpu_ns = time.thread_time_ns()
    for job in jobs:
        if not job.ahead:
            job.error = prepare(name, job)
    ran = [job for job in jobs if job.is_wanted]
    source = jobs[0].source
    error: FoveaError | None = None
    outputs: Outputs = {}

    def compute() -> None:
        nonlocal computing, done, outputs
        call = source.gather(ran)
        computing = time.monotonic_ns()
        try:
            outputs = call(alone(ran))
        finally:
            done = time.monotonic_ns()

    if ran:
        error = _error_of(compute, name)
    if computed is not None:
        computed()
    row, rows = 0, sum(job.rows for job in ran)
    for job in ran:
        job.batch = rows
        job.error = error or _error_of(partial(source.finish, job, outputs, row), name)
        row += job.rows
    ended = time.monotonic_ns()
    times = StageTimes(0, 0, computing - began, done - computing, ended - done)
    for job in ran:
        if job.error is None:
            job.times = source.times(job, began, times)
    return Batch(jobs, ran, rows, times, time.thread_time_ns() - cpu_ns, error)


def prepare(name: str, job: Job) -> FoveaError | None:
    """Prepare a job if a caller still waits for it. Return the error, or None if it succeeded."""
    return _error_of(partial(job.source.prepare, job), name) if job.is_wanted else None


def _error_of(call: Callable[[], None], name: str) -> FoveaError | None:
    """Make a call, and return its error in the form that clients may see."""
    try:
        call()
    except FoveaError as error:
        return error
    except MemoryError:
        return NoMemory("there is not enough memory for this request now: send it again later")
    except Exception:  # one request must not end the model
        log.exception("model %s: an execution failed", name)
        return InferenceFailed("an internal error; the server's log has the details")
    return None
