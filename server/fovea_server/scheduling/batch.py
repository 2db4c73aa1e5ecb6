"""Requests wait in one room, and go to the engine one by one or in batches."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from fovea_engines.backends.base import Session
from fovea_preprocess.errors import (
    DeadlineExceeded,
    DeviceLost,
    FoveaError,
    ModelNotReady,
    QueueFull,
    ShuttingDown,
)
from fovea_server.scheduling.batching import Batching
from fovea_server.scheduling.contract import Contract
from fovea_server.scheduling.door import Door
from fovea_server.scheduling.execution import Execution, execute
from fovea_server.scheduling.fast_lane import FastLane
from fovea_server.scheduling.job import Job, Outputs
from fovea_server.scheduling.waiting import WaitingRoom
from fovea_server.statistics import FailureReason, ModelStatistics, Spans
from fovea_server.v2.check import Checked, request_prefix
from fovea_server.v2.messages import InferRequest, InferResponse


class BatchScheduler:
    """One waiting room in front of one engine; everything but the engine runs on the event loop.

    Args:
        contract: of the model.
        session: its engine; stays open.
        statistics: what is counted.
        waiting: where requests wait.
        batching: which of them go together, and when.
        side_by_side: executions at a time.
    """

    def __init__(
        self,
        contract: Contract,
        session: Session,
        statistics: ModelStatistics,
        *,
        waiting: WaitingRoom,
        batching: Batching,
        side_by_side: int,
    ) -> None:
        self.failure: str | None = None
        self.contract = contract
        self._statistics = statistics
        self._waiting = waiting
        self._batching = batching
        self._session = session
        self._lane = FastLane()
        self._side_by_side = side_by_side
        self._running = 0
        self._seconds = 0.0
        self._threads = ThreadPoolExecutor(side_by_side, f"{contract.name}-infer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._door = Door()

    @property
    def pending(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def inflight(self) -> int:
        """Requests that wait or are at the engine."""
        return self._door.inside

    async def infer(self, request: InferRequest) -> InferResponse:
        """See `Scheduler`."""
        arrived_ns = time.monotonic_ns()
        checked = await self.contract.checked(request)
        outputs = await self.run(request, checked, arrived_ns)
        return self.contract.respond(request, outputs)

    async def run(self, request: InferRequest, checked: Checked, arrived_ns: int) -> Outputs:
        """What the engine gives for a request that fits.

        Raises:
            Unavailable, InferenceFailed: see `Scheduler.infer`.
        """
        if self.failure:
            raise ModelNotReady(self.failure)
        self._door.check(request)
        if not self._waiting and not self._batching.waits and self._lane.takes(checked):
            return self._run_here(request, checked, arrived_ns)
        loop = asyncio.get_running_loop()
        job = Job(request, checked, arrived_ns, loop.create_future())
        with self._door:
            self._enter(job, loop)
            try:
                self._dispatch()
                return await job.future
            except asyncio.CancelledError:
                if self._waiting.discard(job):
                    job.leave_queue()
                    self._count_failure(job.arrived_ns, FailureReason.CANCELED)
                raise

    def close(self, timeout_s: float) -> None:
        """See `Scheduler`."""
        self._door.close(timeout_s)
        if self._waiting and self._loop is not None and self._loop.is_running():
            empty = Future[None]()
            self._loop.call_soon_threadsafe(self._empty, empty)
            # Before the threads are gone, so that nobody is sent to them any more.
            wait([empty], timeout=1)
        self._threads.shutdown()

    def _empty(self, done: Future[None]) -> None:
        self._turn_away(ShuttingDown("the server stopped before this request was done"))
        done.set_result(None)

    def _run_here(self, request: InferRequest, checked: Checked, arrived_ns: int) -> Outputs:
        alone = not self._running
        execution = execute(self.contract.name, self._session, (checked,), alone=alone)
        self._lane.learn(execution.spans.compute_infer, here=True)
        if execution.error is not None:
            self._count_failure(arrived_ns, FailureReason.BACKEND)
            self._look_at(execution.error)
            raise execution.error
        self._statistics.executed(execution.rows, execution.spans)
        self._count_success(request, checked, arrived_ns, execution)
        return execution.outputs[0]

    def _enter(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        policy = self._waiting.add(job)
        if policy is None:
            self._count_failure(job.arrived_ns, FailureReason.REJECTED)
            raise QueueFull(
                f"{request_prefix(job.request)}Exceeds maximum queue size",
                retry_after_s=len(self._waiting) * self._seconds / self._side_by_side,
            )
        self._loop = loop
        if timeout_us := policy.timeout_of(job.request.timeout_us):
            expire = self._reject if policy.rejects else self._waiting.delay
            job.expiry = loop.call_later(timeout_us / 1e6, expire, job)

    def _reject(self, job: Job) -> None:
        self._waiting.discard(job)
        self._fail(job, DeadlineExceeded("Request timeout expired"), FailureReason.REJECTED)

    def _dispatch(self) -> None:
        """Give the engine what it can take now."""
        assert self._loop is not None, "somebody has entered"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            here = self._lane.takes(next(iter(self._waiting)).checked)
            if not here and self._running >= self._side_by_side:
                return
            decision = self._batching.decide(self._waiting, time.monotonic_ns())
            if not decision.count:
                if decision.wait_s is not None:
                    self._timer = self._loop.call_later(decision.wait_s, self._dispatch)
                return
            self._start(self._waiting.take(decision.count), here, self._loop)

    def _start(self, jobs: list[Job], here: bool, loop: asyncio.AbstractEventLoop) -> None:
        for job in jobs:
            job.leave_queue()
        call = partial(
            execute,
            self.contract.name,
            self._session,
            [job.checked for job in jobs],
            alone=not self._running and not self._waiting,
        )
        if here:
            self._settle(jobs, call(), here=True)
            return
        self._running += 1
        loop.run_in_executor(self._threads, call).add_done_callback(partial(self._done, jobs))

    def _done(self, jobs: list[Job], executed: asyncio.Future[Execution]) -> None:
        self._running -= 1
        self._settle(jobs, executed.result(), here=False)
        self._dispatch()

    def _settle(self, jobs: list[Job], execution: Execution, *, here: bool) -> None:
        """Count what was done, and answer."""
        self._lane.learn(execution.spans.compute_infer, here=here)
        if execution.error is not None:
            for job in jobs:
                self._fail(job, execution.error, FailureReason.BACKEND)
            self._look_at(execution.error)
            return
        self._seconds = execution.spans.compute_infer / 1e9
        self._statistics.executed(execution.rows, execution.spans)
        for job, outputs in zip(jobs, execution.outputs, strict=True):
            if job.future.done():
                self._count_failure(job.arrived_ns, FailureReason.CANCELED)
            else:
                self._count_success(job.request, job.checked, job.arrived_ns, execution)
                job.future.set_result(outputs)

    def _count_success(
        self, request: InferRequest, checked: Checked, arrived_ns: int, execution: Execution
    ) -> None:
        _, made, inferred, taken = execution.spans
        spans = Spans(execution.began_ns - arrived_ns, made, inferred, taken)
        if request.trace is not None:
            request.trace.computed(spans)
        self._statistics.succeeded(checked.rows, time.monotonic_ns() - arrived_ns, spans)

    def _count_failure(self, arrived_ns: int, reason: FailureReason) -> None:
        self._statistics.failed(time.monotonic_ns() - arrived_ns, reason)

    def _fail(self, job: Job, error: FoveaError, reason: FailureReason) -> None:
        self._count_failure(job.arrived_ns, reason)
        if not job.future.done():
            job.future.set_exception(error)

    def _look_at(self, error: FoveaError) -> None:
        """Whether the engine has failed for good."""
        if isinstance(error, DeviceLost):
            self.failure = str(error)
            self._turn_away(ModelNotReady(self.failure))

    def _turn_away(self, error: FoveaError) -> None:
        """Tell everyone who waits."""
        for job in self._waiting.take(len(self._waiting)):
            job.leave_queue()
            self._fail(job, error, FailureReason.OTHER)
