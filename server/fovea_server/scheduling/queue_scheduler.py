"""The scheduler of one engine, for tensors and images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial

from fovea_preprocess.errors import FoveaError, ModelNotReady, Unavailable
from fovea_server.observability.model_statistics import NO_TIMES, FailureReason, ModelStatistics
from fovea_server.scheduling.base import Scheduler, run_in_thread
from fovea_server.scheduling.batch import prepare
from fovea_server.scheduling.executor import Executor, reason_of
from fovea_server.scheduling.job import ImageSource, Job, TensorSource
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.scheduling.model_io import ModelIO, Outputs
from fovea_server.tensors.check import CheckedRequest
from fovea_server.tensors.messages import (
    ImageRequest,
    ImageResult,
    InferRequest,
    InferResponse,
    Place,
    SentImage,
)


class QueueScheduler(Scheduler):
    """Runs one queue in front of one engine; closing the scheduler leaves the engine open.

    Args:
        model_io: checks requests and builds responses.
        queue: the queue, which no other scheduler uses.
        statistics: counters of the model version.
        tensors: makes jobs from tensors.
        images: makes jobs from images; None for a model that takes no images.
        executing: number of threads that execute batches.
        preparing: number of threads that prepare images before their execution.
        offloads: value of `Session.offloads`: True if the engine runs on a device other than the
            CPU.
    """

    def __init__(
        self,
        model_io: ModelIO,
        queue: JobQueue,
        statistics: ModelStatistics,
        *,
        tensors: TensorSource,
        images: ImageSource | None,
        executing: int,
        preparing: int,
        offloads: bool,
    ) -> None:
        super().__init__()
        self.model_io = model_io
        self._queue = queue
        self._tensors = tensors
        self._images = images
        self._executor = Executor(
            model_io.name,
            queue,
            statistics,
            executing=executing,
            preparing=preparing,
            offloads=offloads,
        )
        self._apart: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> bytes:
        """Bytes that identify the loaded model."""
        return self.model_io.identity

    @property
    def failure(self) -> str | None:
        """The reason why the scheduler can never respond again; None while it can respond."""
        return self._executor.failure

    @property
    def pending(self) -> int:
        """Number of jobs in the queue."""
        return len(self._queue)

    @property
    def accepted(self) -> int:
        """Number of jobs in the queue and in executions."""
        return self._queue.accepted

    def start(self) -> None:
        """Start the threads, before the first request.

        Raises:
            Unavailable: a thread could not be started.
        """
        self._executor.start()

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests within the timeout, then stop."""
        super().close(timeout_s)
        self._executor.close()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Check a tensor request, run it, and return its response."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            checked = await self.model_io.check_request(request)
            outputs = await self.run(request, checked, arrived_ns)
        return self.model_io.respond(request, outputs)

    async def run(self, request: InferRequest, checked: CheckedRequest, arrived_ns: int) -> Outputs:
        """Run the engine for a checked request; raise the errors of `infer`."""
        job = self._tensors.job(request, checked, arrived_ns)
        await self._run((job,), arrived_ns)
        if job.error is not None:
            raise job.error
        if request.trace is not None:
            request.trace.record_times(job.times)
        if request.times is not None:
            request.times.append(job.times)
            request.batch = job.batch
        return job.outputs

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Return one result or error for each image of the request."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            run = partial(self._predict, arrived_ns)
            if request.cut is None:
                answers = await run(request, request.images)
            else:
                answers = await self._answer_by_parts(
                    request, request.cut(request, run), arrived_ns
                )
        if request.trace is not None:
            times = (each.times for each in answers if isinstance(each, ImageResult))
            request.trace.record_times(max(times, key=sum, default=NO_TIMES))
        return answers

    async def _answer_by_parts(
        self,
        request: ImageRequest,
        answering: Awaitable[list[ImageResult | FoveaError]],
        arrived_ns: int,
    ) -> list[ImageResult | FoveaError]:
        """Return the results of images that are computed in parts (tiles), and count the images."""
        failed = FailureReason.CANCELED
        answers: list[ImageResult | FoveaError] = []
        try:
            answers = await answering
        except FoveaError:
            failed = FailureReason.REJECTED
            raise
        finally:
            for _ in request.images[len(answers) :]:
                self._executor.count_failure(arrived_ns, failed)
        for answer in answers:
            if isinstance(answer, FoveaError):
                self._executor.count_failure(arrived_ns, reason_of(answer))
            else:
                self._executor.count_joined(arrived_ns, answer.times)
        return answers

    async def _predict(
        self, arrived_ns: int, request: ImageRequest, images: Sequence[SentImage]
    ) -> list[ImageResult | FoveaError]:
        """Return results for `images`, which replace the request's images: for example, tiles."""
        source = self._images
        assert source is not None, "only models that take images are asked"
        now_ns = time.monotonic_ns()
        jobs = [source.job(request, data, now_ns) for data in images]
        await self._run(jobs, arrived_ns)
        return [job.image.result if job.error is None else job.error for job in jobs]

    async def _run(self, jobs: Sequence[Job], arrived_ns: int) -> None:
        """Run the jobs of one request that arrived at `arrived_ns`, until all jobs are complete."""
        if self.failure:
            raise ModelNotReady(self.failure)
        self.gate.check(jobs[0].request)
        if len(jobs) == 1 and self._executor.run_at_once(jobs[0]):
            return
        self._enter(jobs, arrived_ns)
        # `self._apart` keeps these tasks alive, because the event loop keeps only weak references
        # to tasks.
        apart = [
            asyncio.create_task(self._prepare_apart(job, job.place))
            for job in jobs
            if job.place is not None
        ]
        self._apart.update(apart)
        try:
            self._executor.step()
            for job in jobs:
                assert job.future is not None, "it has entered"
                await job.future
        except asyncio.CancelledError:
            await self._withdraw(jobs)
            raise
        finally:
            for task in apart:
                task.add_done_callback(self._apart.discard)
                task.cancel()

    def _enter(self, jobs: Sequence[Job], arrived_ns: int) -> None:
        policy = self._executor.enter(jobs)
        if timeout_us := policy.timeout_us(jobs[0].request.timeout_us):
            expire = self._reject if policy.rejects else self._queue.delay
            loop, passed_ns = asyncio.get_running_loop(), time.monotonic_ns() - arrived_ns
            for job in jobs:
                job.expiry = loop.call_later(timeout_us / 1e6 - passed_ns / 1e9, expire, job)

    def _reject(self, job: Job) -> None:
        if self._queue.withdraw(job):
            job.error = job.expired_error()
            self._executor.answer(job)

    async def _prepare_apart(self, job: Job, place: Place) -> None:
        """Prepare a large image in a separate thread, as soon as memory for decoding it is free."""
        async with place as turn:
            try:
                error = await run_in_thread(partial(prepare, self.model_io.name, job))
            except RuntimeError as fault:  # Python raises it at a limit on threads
                error = Unavailable(f"no thread could be started ({fault}): send it again later")
            assert job.future is not None, "it has entered"
            if error is not None:
                # If the job has left the queue meanwhile, it has a result or an error already.
                if self._queue.withdraw(job):
                    job.error = error
                    self._executor.answer(job)
            elif not job.future.done():
                turn.end_decoding(job.image.held)
                job.prepared = True
                self._executor.step()
                await asyncio.wait([job.future])

    async def _withdraw(self, jobs: Sequence[Job]) -> None:
        """Remove the jobs of a cancelled request, and wait until the engine has read its inputs."""
        for job in jobs:
            assert job.future is not None, "it has entered"
            job.future.cancel()
            if self._queue.withdraw(job):
                self._executor.answer(job)
        for job in jobs:
            while job.source.borrows and not job.answered:
                # The engine still reads the inputs, so a second cancellation does not end this
                # wait.
                job.given_up = asyncio.get_running_loop().create_future()
                with suppress(asyncio.CancelledError):
                    await job.given_up
