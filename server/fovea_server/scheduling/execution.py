"""One execution: jobs become a batch, the engine computes it, and each job takes its part."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fovea_preprocess.errors import FoveaError, InferenceFailed, NoMemory
from fovea_server.scheduling.contract import Outputs
from fovea_server.scheduling.job import Job
from fovea_server.statistics.model import Spans

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Execution:
    """The result of one execution.

    Attributes:
        jobs: those that the engine computed, or failed on; the others have their own `error`, or
            are not wanted any more.
        cpu_ns: CPU time of the thread that ran it.
        error: the engine's, which all its jobs have too.
    """

    jobs: Sequence[Job]
    spans: Spans
    cpu_ns: int
    error: FoveaError | None = None


def execute(
    name: str,
    jobs: Sequence[Job],
    alone: Callable[[Sequence[Job]], bool],
    computed: Callable[[], None] | None = None,
) -> Execution:
    """Execute jobs of one kind that fit each other; their errors are in them.

    Args:
        name: of the model.
        jobs: taken from its queue.
        alone: says of a batch that is made if it runs alone, as in `Session.infer`.
        computed: called when the engine has computed.
    """
    began = computing = done = time.monotonic_ns()
    cpu_ns = time.thread_time_ns()
    for job in jobs:
        if not job.ahead:
            job.error = prepare(name, job)
    jobs = [job for job in jobs if job.is_wanted]
    error: FoveaError | None = None
    outputs: Outputs = {}

    def compute() -> None:
        nonlocal computing, done, outputs
        call = jobs[0].kind.gather(jobs)
        computing = time.monotonic_ns()
        try:
            outputs = call(alone(jobs))
        finally:
            done = time.monotonic_ns()

    if jobs:
        error = _error_of(compute, name)
    if computed is not None:
        computed()
    row, rows = 0, sum(job.rows for job in jobs)
    for job in jobs:
        job.error = error or _error_of(partial(job.finish, outputs, row, rows), name)
        row += job.rows
    spans = Spans(0, computing - began, done - computing, time.monotonic_ns() - done)
    for job in jobs:
        if job.error is None:
            job.times = job.spans(began, spans)
    return Execution(jobs, spans, time.thread_time_ns() - cpu_ns, error)


def prepare(name: str, job: Job) -> FoveaError | None:
    """Prepare a job, if somebody still waits for it; return what is wrong with it."""
    return _error_of(job.prepare, name) if job.is_wanted else None


def _error_of(call: Callable[[], None], name: str) -> FoveaError | None:
    """Call, and return what went wrong, as clients may see it."""
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
