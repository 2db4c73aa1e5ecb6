"""Executes the jobs in the queue of a model: takes a batch, runs it, and completes its jobs.

Short batches run on the event loop, and longer batches in threads. All jobs are completed on the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from fovea_engines.repository.model_config_scheduling import ModelQueuePolicy
from fovea_preprocess.errors import (
    BackendError,
    DeadlineExceeded,
    DeviceLost,
    FoveaError,
    ModelNotReady,
    ShuttingDown,
    Unavailable,
)
from fovea_server.observability.model_statistics import FailureReason, ModelStatistics, StageTimes
from fovea_server.scheduling.batch import Batch, prepare, run
from fovea_server.scheduling.job import Job
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.tensors.messages import ImageRequest

log = logging.getLogger(__name__)


class Executor:
    """Executes the jobs of a queue; prepares jobs before their execution if the source allows that.

    On a CPU, a thread computes a batch and splits its outputs before it takes the next batch. An
    engine on another device gets the next batch from another thread immediately. `start` starts the
    threads.

    Args:
        name: name of the model.
        executing: number of threads that execute batches.
        preparing: number of threads that prepare jobs before their execution.
        offloads: value of `Session.offloads`: True if the engine runs on a device other than the
            CPU.

    Attributes:
        failure: the reason why no job can be executed any more; None while jobs can be executed.
    """

    def __init__(
        self,
        name: str,
        queue: JobQueue,
        statistics: ModelStatistics,
        *,
        executing: int,
        preparing: int,
        offloads: bool,
    ) -> None:
        self.failure: str | None = None
        self._name = name
        self._queue = queue
        self._statistics = statistics
        self._offloads = offloads
        self._batches: SimpleQueue[list[Job]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"{name}-{kind}", daemon=True)
            for kind, work, count in (
                ("infer", self._work, executing),
                ("decode", self._prepare, preparing),
            )
            for _ in range(count)
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Start all threads; if one thread cannot start, end the threads that have started.

        Raises:
            Unavailable: a thread could not be started.
        """
        started: list[threading.Thread] = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError as error:
                count, self._threads = len(self._threads), started
                self.close()
                raise Unavailable(
                    f"only {len(started)} of the {count} threads of model '{self._name}' could be "
                    f"started ({error}): lower the count of its instance_group, unload other "
                    "models, or raise the limits on processes (ulimit -u, pids.max) and memory"
                ) from error
            started.append(thread)

    def close(self) -> None:
        """End the threads after their present batches, and fail the jobs that no thread has run."""
        stopped = ShuttingDown(
            "the server stopped before it finished this request: send the request again"
        )
        self._fail(self._queue.clear(close=True), stopped)
        for _ in self._threads:
            self._batches.put([])
        for thread in self._threads:
            thread.join()
        if self._loop is not None:
            # The event loop may have taken a batch from the queue just before the queue was closed.
            self._post(partial(self._fail_batches, stopped))

    def enter(self, jobs: Sequence[Job]) -> ModelQueuePolicy:
        """Queue the jobs of one request, and return their queue policy.

        Raises:
            FoveaError: one of the errors of `JobQueue.enter`.
        """
        loop = self._loop = asyncio.get_running_loop()
        for job in jobs:
            job.future = loop.create_future()
        try:
            return self._queue.enter(jobs)
        except FoveaError:
            for job in jobs:
                if not job.is_part:
                    self.count_failure(job.arrived_ns, FailureReason.REJECTED)
            raise

    def step(self) -> None:
        """Run a short batch on the event loop, or pass longer batches to the threads."""
        assert self._loop is not None, "somebody has entered"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            jobs, wait_s = self._queue.next()
            if wait_s is not None:
                self._timer = self._loop.call_later(wait_s, self.step)
            if not jobs:
                return
            if self._queue.running == 1 and jobs[0].source.inline.takes(jobs):
                break
            self._batches.put(jobs)
        batches = self._run(jobs)
        self._queue.done()
        self._finish(batches, here=True)
        if self._queue:
            # The next batch is scheduled as a new callback, so that other tasks of the event loop
            # run first.
            self._timer = self._loop.call_soon(self.step)

    def run_at_once(self, job: Job) -> bool:
        """Run and complete a job on the event loop if it need not wait and is short enough.

        Returns:
            True if the job was run, False if it must go through the queue.
        """
        source = job.source
        if self._queue.accepted or source.batching.waits or not source.inline.takes((job,)):
            return False
        self._finish(self._run((job,)), here=True)
        return True

    def _work(self) -> None:
        """Take and run batches until the executor closes; this is the body of a thread."""
        jobs: list[Job] = []
        ran: list[Batch] = []
        try:
            while jobs := self._batches.get():
                while jobs:
                    ran += self._run(jobs)
                    request, jobs = jobs[0].request, []
                    failed = any(batch.error is not None for batch in ran)
                    if not self._offloads and not failed:
                        jobs = self._next()
                    # Batches of the same request are completed by one callback, so that the event
                    # loop wakes up only once.
                    if not jobs or jobs[0].request is not request:
                        self._post(partial(self._finish, ran))
                        ran = []
                    # Delete the variable, because a thread that waits must not keep the images of a
                    # request in memory.
                    del request
                    if not self._offloads and failed:
                        jobs = self._next()
        except BaseException:
            self._die([*(job for batch in ran for job in batch.jobs), *jobs])
            raise

    def _prepare(self) -> None:
        """Prepare jobs for execution until the queue closes; this is the body of a thread."""
        while (job := self._queue.claim()) is not None:
            try:
                error = prepare(self._name, job)
            except BaseException:
                # The job is still in the queue, so `_die` fails it together with all other queued
                # jobs.
                self._die(())
                raise
            job.prepared = error is None
            # If the job has left the queue meanwhile, other code responds to it.
            if error is not None and self._queue.withdraw(job):
                self._fail([job], error)
            elif jobs := self._take():
                self._batches.put(jobs)

    def _take(self) -> list[Job]:
        """Take the next batch from the queue.

        If the batch waits for more jobs, the event loop sets a timer for it.
        """
        jobs, wait_s = self._queue.next()
        if wait_s is not None:
            self._post(self.step)
        return jobs

    def _next(self) -> list[Job]:
        """Record the end of an execution, and take the next batch."""
        self._queue.done()
        return self._take()

    def _run(self, jobs: Sequence[Job]) -> list[Batch]:
        computed = self._on_computed if self._offloads else None
        batches = run(self._name, jobs, self._queue.is_alone, computed)
        for batch in batches:
            if isinstance(batch.error, DeviceLost):
                self.failure = str(batch.error)
                self._fail(self._queue.clear(), ModelNotReady(self.failure))
        return batches

    def _on_computed(self) -> None:
        if jobs := self._next():
            self._batches.put(jobs)

    def _die(self, jobs: Sequence[Job]) -> None:
        """Fail all queued jobs, and the given jobs, which have left the queue already."""
        self.failure = "one of its threads has died; see the server's log, and restart the server"
        log.critical("model %s: %s", self._name, self.failure)
        self._fail([*self._queue.clear(), *jobs], ModelNotReady(self.failure))

    def _fail(self, jobs: Sequence[Job], error: FoveaError) -> None:
        """Fail jobs that have left the queue; callable from any thread."""
        for job in jobs:
            job.error = error
        if jobs:
            self._post(partial(self._finish, [Batch(jobs)]))

    def _fail_batches(self, error: FoveaError) -> None:
        """Fail the jobs of the batches that wait for a thread."""
        with suppress(Empty):
            while True:
                self._fail(self._batches.get_nowait(), error)

    def _post(self, call: Callable[[], None]) -> None:
        """Call a function on the event loop, from any thread."""
        assert self._loop is not None, "somebody has entered"
        # `call_soon_threadsafe` fails if the event loop is closed; then no caller waits for a
        # response.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _finish(self, batches: Iterable[Batch], *, here: bool = False) -> None:
        """Count batches, record their times, and complete their jobs; call it on the event loop.

        Args:
            batches: the executed batches.
            here: True if the batches ran on the event loop, False if they ran in a thread.
        """
        for batch in batches:
            if batch.ran and (here or batch.error is None):
                inline = batch.ran[0].source.inline
                inline.learn(batch.cpu_ns, sum(batch.times) if here else None)
            if batch.ran and batch.error is None:
                self._statistics.count_execution(batch.rows, batch.times)
            for job in batch.jobs:
                self.answer(job)

    def answer(self, job: Job) -> None:
        """Count a completed job, and wake its caller; call it on the event loop."""
        job.answered = True
        if job.expiry is not None:
            job.expiry.cancel()
        cancelled = False
        if job.future is not None:
            cancelled = job.future.done()
            self._queue.count_answer(served=job.error is None and not cancelled)
            if job.given_up is not None and not job.given_up.done():
                job.given_up.set_result(None)
            if not cancelled:
                job.future.set_result(None)
        if job.is_part:
            if job.error is None and not cancelled:
                self._statistics.count_parts(job.rows)
        elif cancelled:
            self.count_failure(job.arrived_ns, FailureReason.CANCELED)
        elif job.error is not None:
            self.count_failure(job.arrived_ns, reason_of(job.error))
        else:
            self._statistics.count_success(
                job.rows, time.monotonic_ns() - job.arrived_ns, job.times
            )
            if isinstance(job.request, ImageRequest):
                self._statistics.stages.observe(job.times)

    def count_joined(self, arrived_ns: int, times: StageTimes) -> None:
        """Count an image as a success; its parts (tiles) have been counted as inferences."""
        self._statistics.count_success(0, time.monotonic_ns() - arrived_ns, times)
        self._statistics.stages.observe(times)

    def count_failure(self, arrived_ns: int, reason: FailureReason) -> None:
        """Count a tensor request or an image as failed."""
        self._statistics.count_failure(time.monotonic_ns() - arrived_ns, reason)


def reason_of(error: FoveaError) -> FailureReason:
    """Return the reason under which the statistics count an error of an accepted request."""
    if isinstance(error, DeadlineExceeded):
        return FailureReason.REJECTED
    return FailureReason.BACKEND if isinstance(error, BackendError) else FailureReason.OTHER
