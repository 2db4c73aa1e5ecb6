"""The scheduler of one engine, for tensors and images alike.

Requests enter and are answered on the event loop. Short executions run there, others in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from fovea_preprocess.errors import (
    BackendError,
    DeadlineExceeded,
    DeviceLost,
    FoveaError,
    ModelNotReady,
    ShuttingDown,
    Unavailable,
)
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.contract import Contract, Outputs
from fovea_server.scheduling.execution import Execution, execute, prepare
from fovea_server.scheduling.image_job import ImageJob, ImageKind
from fovea_server.scheduling.job import Job
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.scheduling.tensor_job import TensorJob, TensorKind
from fovea_server.scheduling.threads import in_thread
from fovea_server.scheduling.workers import Workers
from fovea_server.statistics.model import FailureReason, ModelStatistics
from fovea_server.tensors.check import Checked
from fovea_server.tensors.image_messages import ImageRequest, ImageResult, Place, SentImage
from fovea_server.tensors.messages import InferRequest, InferResponse

log = logging.getLogger(__name__)


class RowScheduler(Scheduler):
    """Runs one queue in front of one engine, which stays open.

    Args:
        tensors: what the requests for tensors have in common.
        images: the same of images; None for a model that takes none.
        executing, preparing: threads for executions, and to prepare images ahead of the engine.
        offloads: as `Session.offloads`.
    """

    failure: str | None = None

    def __init__(
        self,
        contract: Contract,
        queue: JobQueue,
        statistics: ModelStatistics,
        *,
        tensors: TensorKind,
        images: ImageKind | None,
        executing: int,
        preparing: int,
        offloads: bool,
    ) -> None:
        super().__init__()
        self.contract = contract
        self._queue = queue
        self._statistics = statistics
        self._tensors = tensors
        self._images = images
        self._workers = Workers(
            contract.name,
            queue,
            executing=executing,
            preparing=preparing,
            offloads=offloads,
            executed=self._on_executed,
            waits=lambda: self._post(self._dispatch),
            died=self._on_death,
        )
        self._apart: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self.contract.identity

    @property
    def pending(self) -> int:
        """Number of jobs in the queue."""
        return len(self._queue)

    @property
    def accepted(self) -> int:
        """Number of jobs in the queue and in executions."""
        return self._queue.accepted

    def start(self) -> None:
        """Start the threads, before the first request; Unavailable: there is no room for them."""
        try:
            self._workers.start()
        except Unavailable:
            self.close(0)
            raise

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer tensors."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            checked = await self.contract.checked(request)
            outputs = await self.run(request, checked, arrived_ns)
        return self.contract.respond(request, outputs)

    async def run(self, request: InferRequest, checked: Checked, arrived_ns: int) -> Outputs:
        """Run the engine for a request that fits the model; raises as `infer`."""
        job = TensorJob(self._tensors, request, checked, arrived_ns)
        await self._answer((job,))
        if job.error is not None:
            raise job.error
        if request.trace is not None:
            request.trace.computed(job.times)
        if request.spans is not None:
            request.spans.append(job.times)
            request.batch = job.batch
        return job.outputs

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images."""
        return await self.predict_parts(request, request.images)

    async def predict_parts(
        self, request: ImageRequest, images: Sequence[SentImage]
    ) -> list[ImageResult | FoveaError]:
        """Answer images in place of those of a request, such as the tiles of one."""
        arrived_ns, kind = time.monotonic_ns(), self._images
        assert kind is not None, "only models that take images are asked"
        with self.gate.open_for(request):
            jobs = [ImageJob(kind, request, data, arrived_ns) for data in images]
            await self._answer(jobs)
        if request.trace is not None:
            request.trace.computed(max((job.times for job in jobs), key=sum))
        return [job.result if job.error is None else job.error for job in jobs]

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        super().close(timeout_s)
        stopped = ShuttingDown("the server stopped before this request was done")
        self._fail(self._queue.clear(close=True), stopped)
        self._fail(self._workers.close(), stopped)

    async def _answer(self, jobs: Sequence[Job]) -> None:
        """Get the jobs of one request done: each then has its outcome, or its `error`."""
        if self.failure:
            raise ModelNotReady(self.failure)
        self.gate.check(jobs[0].request)
        kind, idle = jobs[0].kind, len(jobs) == 1 and not self._queue.accepted
        if idle and not kind.batching.waits and kind.inline.takes(jobs):
            self._settle(jobs, [self._execute_here(jobs)])
            return
        loop = self._loop = asyncio.get_running_loop()
        self._enter(jobs, loop)
        apart = [
            loop.create_task(self._prepare_apart(job, job.place))
            for job in jobs
            if isinstance(job, ImageJob) and job.place is not None
        ]
        # The loop itself does not keep tasks alive.
        self._apart.update(apart)
        try:
            self._dispatch()
            for job in jobs:
                assert job.future is not None, "it has entered"
                await job.future
        except asyncio.CancelledError:
            await self._withdraw(jobs, loop)
            raise
        finally:
            for task in apart:
                task.add_done_callback(self._apart.discard)
                task.cancel()

    async def _prepare_apart(self, job: ImageJob, place: Place) -> None:
        """Prepare a large image in a thread of its own, once it may be decoded."""
        async with place as turn:
            try:
                error = await in_thread(partial(prepare, self.contract.name, job))
            except RuntimeError as fault:  # of Python, at a limit on threads
                error = Unavailable(f"no thread could be started ({fault}): send it again later")
            assert job.future is not None, "it has entered"
            if error is not None:
                # Where it has left the queue meanwhile, it is answered.
                if self._queue.withdraw(job):
                    job.error = error
                    self._answered(job)
            elif not job.future.done():
                turn.decoded(job.held)
                job.prepared = True
                self._dispatch()
                await asyncio.wait([job.future])

    def _enter(self, jobs: Sequence[Job], loop: asyncio.AbstractEventLoop) -> None:
        for job in jobs:
            job.future = loop.create_future()
        try:
            policy = self._queue.enter(jobs)
        except FoveaError:
            for job in jobs:
                self._count_failure(job, FailureReason.REJECTED)
            raise
        if timeout_us := policy.timeout_us(jobs[0].request.timeout_us):
            expire = self._reject if policy.rejects else self._queue.delay
            for job in jobs:
                job.expiry = loop.call_later(timeout_us / 1e6, expire, job)

    def _reject(self, job: Job) -> None:
        if self._queue.withdraw(job):
            job.error = job.expired()
            self._answered(job)

    async def _withdraw(self, jobs: Sequence[Job], loop: asyncio.AbstractEventLoop) -> None:
        """Take out jobs whose caller is gone."""
        for job in jobs:
            assert job.future is not None, "it has entered"
            job.future.cancel()
            if self._queue.withdraw(job):
                self._answered(job)
        for job in jobs:
            while job.borrows and not job.answered:
                # The engine still reads the inputs, however often the caller gives up.
                job.given_up = loop.create_future()
                with suppress(asyncio.CancelledError):
                    await job.given_up

    def _dispatch(self) -> None:
        """Give the engine as many batches as it can take now; on the event loop."""
        assert self._loop is not None, "somebody has entered"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            jobs, wait_s = self._queue.next()
            if wait_s is not None:
                self._timer = self._loop.call_later(wait_s, self._dispatch)
            if not jobs:
                return
            if self._queue.running > 1 or not jobs[0].kind.inline.takes(jobs):
                self._workers.put(jobs)
                continue
            execution = self._execute_here(jobs)
            self._queue.done()
            self._settle(jobs, [execution])
            if self._queue:
                # Other tasks of the event loop run before the next batch.
                self._timer = self._loop.call_soon(self._dispatch)
            return

    def _execute_here(self, jobs: Sequence[Job]) -> Execution:
        execution = execute(self.contract.name, jobs, self._queue.is_alone)
        if execution.jobs:
            jobs[0].kind.inline.learn(execution.cpu_ns, sum(execution.spans))
        return execution

    def _on_executed(self, jobs: Sequence[Job], executions: Sequence[Execution]) -> None:
        for execution in executions:
            if isinstance(execution.error, DeviceLost):
                self.failure = str(execution.error)
                self._fail(self._queue.clear(), ModelNotReady(self.failure))
        self._post(lambda: self._learn_and_settle(jobs, executions))

    def _learn_and_settle(self, jobs: Sequence[Job], executions: Sequence[Execution]) -> None:
        for execution in executions:
            if execution.error is None and execution.jobs:
                jobs[0].kind.inline.learn(execution.cpu_ns)
        self._settle(jobs, executions)

    def _on_death(self, jobs: Sequence[Job]) -> None:
        self.failure = "one of its threads has died; the server's log says why; restart it"
        log.critical("model %s: %s", self.contract.name, self.failure)
        self._fail([*self._queue.clear(), *jobs], ModelNotReady(self.failure))

    def _fail(self, jobs: Sequence[Job], error: FoveaError) -> None:
        """Answer jobs that are in no queue any more with an error; in any thread."""
        for job in jobs:
            job.error = error
        if jobs:
            self._post(lambda: self._settle(jobs, ()))

    def _post(self, call: Callable[[], None]) -> None:
        """Call on the event loop, from any thread."""
        assert self._loop is not None, "somebody has entered"
        # On a loop that is closed, nobody waits for an answer any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _settle(self, jobs: Sequence[Job], executions: Sequence[Execution]) -> None:
        """Count executions, and answer their jobs; on the event loop."""
        for execution in executions:
            if execution.error is None and execution.jobs:
                rows = sum(job.rows for job in execution.jobs)
                self._statistics.executed(rows, execution.spans)
        for job in jobs:
            self._answered(job)

    def _answered(self, job: Job) -> None:
        job.answered = True
        if job.expiry is not None:
            job.expiry.cancel()
        cancelled = False
        if job.future is not None:
            cancelled = job.future.done()
            self._queue.answered(served=job.error is None and not cancelled)
            if job.given_up is not None and not job.given_up.done():
                job.given_up.set_result(None)
            if not cancelled:
                job.future.set_result(None)
        if cancelled:
            self._count_failure(job, FailureReason.CANCELED)
        elif job.error is not None:
            self._count_failure(job, _reason(job.error))
        else:
            total_ns = time.monotonic_ns() - job.arrived_ns
            self._statistics.succeeded(job.rows, total_ns, job.times)
            if isinstance(job, ImageJob):
                self._statistics.stages.observe(job.result.timing)

    def _count_failure(self, job: Job, reason: FailureReason) -> None:
        self._statistics.failed(time.monotonic_ns() - job.arrived_ns, reason)


def _reason(error: FoveaError) -> FailureReason:
    if isinstance(error, DeadlineExceeded):
        return FailureReason.REJECTED
    return FailureReason.BACKEND if isinstance(error, BackendError) else FailureReason.OTHER
