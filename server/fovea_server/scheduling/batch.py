"""Runs one batch: joins the inputs of its jobs, computes them, and splits the outputs again."""

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
    """Jobs that were taken from a queue together, and the measurements of their execution.

    Attributes:
        jobs: all jobs. Each job has a result or an `error`, or its caller no longer waits.
        ran: the jobs that the engine computed or tried to compute.
        rows: total number of rows of the jobs in `ran`. A row is one entry of the batch dimension.
        times: durations of the execution's stages, in nanoseconds.
        cpu_ns: CPU time of the thread that ran the batch, in nanoseconds.
        error: error of the engine; each job in `ran` has the same error.
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
    """Run compatible jobs of one source as a batch; if the batch fails, run each job separately.

    Args:
        name: name of the model, for the log.
        jobs: jobs that were taken from the queue.
        alone: returns the argument `alone` of `Session.infer` for a list of jobs.
        computed: called once after the engine has computed the batch; None to call nothing.

    Returns:
        The executed batches. After a failed batch of several jobs, each job is in its own batch.
    """
    batch = _run(name, jobs, alone, computed)
    if not isinstance(batch.error, InferenceFailed) or len(batch.ran) == 1:
        return [batch]
    # One job may have caused the error. Run each job separately, so that the other jobs succeed.
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
    """Prepare a job if a caller still waits for it.

    Returns:
        The error, or None if the job was prepared or no caller waits for it.
    """
    return _error_of(partial(job.source.prepare, job), name) if job.is_wanted else None


def _error_of(call: Callable[[], None], name: str) -> FoveaError | None:
    """Make a call, and return its error with a message that clients may see, or None on success."""
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
