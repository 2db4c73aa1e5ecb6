"""Requests wait in one queue, and go to the engine one by one or in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from fovea_engines.session import Session
from fovea_preprocess.errors import (
    DeadlineExceeded,
    DeviceLost,
    FoveaError,
    InferenceFailed,
    ModelNotReady,
    QueueFull,
    ShuttingDown,
)
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.contract import Contract, Outputs
from fovea_server.scheduling.execution import HEAVY_NS, Execution, InlineExecution, execute
from fovea_server.scheduling.priority_queue import DynamicBatching, Job, PriorityQueue
from fovea_server.statistics.model import FailureReason, ModelStatistics, Spans
from fovea_server.tensors.check import Checked, request_prefix
from fovea_server.tensors.messages import InferRequest, InferResponse


class BatchScheduler(Scheduler):
    """Runs one queue in front of one engine; all but the engine runs on the event loop.

    Args:
        session: stays open.
        batching: decides which requests form a batch, and when.
        side_by_side: number of executions at a time.
    """

    failure: str | None = None

    def __init__(
        self,
        contract: Contract,
        session: Session,
        statistics: ModelStatistics,
        *,
        waiting: PriorityQueue,
        batching: DynamicBatching,
        side_by_side: int,
    ) -> None:
        super().__init__()
        self.contract = contract
        self._statistics = statistics
        self._waiting = waiting
        self._batching = batching
        self._session = session
        self._inline = InlineExecution(steady=session.steady)
        self._side_by_side = side_by_side
        self._running = 0
        self._seconds = 0.0
        self._threads = ThreadPoolExecutor(side_by_side, f"{contract.name}-infer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self.contract.identity

    @property
    def pending(self) -> int:
        """Number of requests in the queue."""
        return len(self._waiting)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request from the queue."""
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            checked = await self.contract.checked(request)
            outputs = await self.run(request, checked, arrived_ns)
        return self.contract.respond(request, outputs)

    async def run(self, request: InferRequest, checked: Checked, arrived_ns: int) -> Outputs:
        """Run the engine for a request that fits the model; raises as `infer`."""
        if self.failure:
            raise ModelNotReady(self.failure)
        self.gate.check(request)
        idle = not self._running and not self._waiting
        if idle and not self._batching.waits and self._inline.takes((checked,)):
            return self._run_here(request, checked, arrived_ns)
        loop = asyncio.get_running_loop()
        job = Job(request, checked, arrived_ns, loop.create_future())
        self._enter(job, loop)
        try:
            self._dispatch()
            return await job.future
        except asyncio.CancelledError:
            if self._waiting.discard(job):
                job.leave_queue()
                self._count_failure(job.arrived_ns, FailureReason.CANCELED)
            elif job.at_engine:
                # The engine still reads the inputs.
                job.given_up = loop.create_future()
                await job.given_up
            raise

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        super().close(timeout_s)
        if self._waiting and self._loop is not None and self._loop.is_running():
            empty = Future[None]()
            self._loop.call_soon_threadsafe(self._empty, empty)
            # Before the threads end, so that no batch is sent to them any more.
            wait([empty], timeout=1)
        self._threads.shutdown()

    def _empty(self, done: Future[None]) -> None:
        self._turn_away(ShuttingDown("the server stopped before this request was done"))
        done.set_result(None)

    def _run_here(self, request: InferRequest, checked: Checked, arrived_ns: int) -> Outputs:
        execution = self._execute_here((checked,))
        if execution.error is not None:
            self._count_failure(arrived_ns, FailureReason.BACKEND)
            self._look_at(execution.error)
            raise execution.error
        self._statistics.executed(checked.rows, execution.spans)
        self._count_success(request, checked, arrived_ns, execution)
        return execution.outputs[0]

    def _execute_here(self, batch: Sequence[Checked]) -> Execution:
        began_ns = time.thread_time_ns()
        execution = execute(self.contract.name, self._session, batch, alone=not self._waiting)
        cpu_ns = took_ns = execution.spans.compute_infer
        if took_ns > HEAVY_NS:
            # A shorter call cannot have used that much CPU time, and reading the clock costs more.
            cpu_ns = time.thread_time_ns() - began_ns
        self._inline.learn(took_ns, cpu_ns=cpu_ns)
        return execution

    def _enter(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        policy = self._waiting.add(job)
        if policy is None:
            self._count_failure(job.arrived_ns, FailureReason.REJECTED)
            raise QueueFull(
                f"{request_prefix(job.request)}Exceeds maximum queue size",
                retry_after_s=len(self._waiting) * self._seconds / self._side_by_side,
            )
        self._loop = loop
        if timeout_us := policy.timeout_us(job.request.timeout_us):
            expire = self._reject if policy.rejects else self._waiting.delay
            job.expiry = loop.call_later(timeout_us / 1e6, expire, job)

    def _reject(self, job: Job) -> None:
        self._waiting.discard(job)
        self._fail(job, DeadlineExceeded("Request timeout expired"), FailureReason.REJECTED)

    def _dispatch(self) -> None:
        """Give the engine as many batches as it can take now."""
        assert self._loop is not None, "somebody has entered"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._running < self._side_by_side:
            decision = self._batching.decide(self._waiting, time.monotonic_ns())
            if not decision.count:
                if decision.wait_s is not None:
                    self._timer = self._loop.call_later(decision.wait_s, self._dispatch)
                return
            jobs = self._waiting.take(decision.count)
            for job in jobs:
                job.leave_queue()
            batch = [job.checked for job in jobs]
            if self._running or not self._inline.takes(batch):
                self._start(jobs, batch, self._loop)
                continue
            self._settle(jobs, self._execute_here(batch), self._loop)
            if self._waiting:
                # Other tasks of the event loop run before the next batch.
                self._timer = self._loop.call_soon(self._dispatch)
            return

    def _start(
        self, jobs: list[Job], batch: list[Checked], loop: asyncio.AbstractEventLoop
    ) -> None:
        alone = not self._running and not self._waiting
        call = partial(execute, self.contract.name, self._session, batch, alone=alone)
        self._running += 1
        for job in jobs:
            job.at_engine = True
        loop.run_in_executor(self._threads, call).add_done_callback(partial(self._done, jobs, loop))

    def _done(
        self,
        jobs: list[Job],
        loop: asyncio.AbstractEventLoop,
        executed: asyncio.Future[Execution],
    ) -> None:
        self._running -= 1
        execution = executed.result()
        self._inline.learn(execution.spans.compute_infer)
        self._settle(jobs, execution, loop)
        self._dispatch()

    def _settle(
        self, jobs: list[Job], execution: Execution, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Count an execution, and answer its requests."""
        refused = isinstance(execution.error, InferenceFailed)
        if refused and len(jobs) > 1 and not self.gate.locked:
            # A single request may be the cause: run each alone, so that the others succeed.
            for job in jobs:
                self._start([job], [job.checked], loop)
            return
        for job in jobs:
            job.leave_engine()
        if execution.error is not None:
            for job in jobs:
                self._fail(job, execution.error, FailureReason.BACKEND)
            self._look_at(execution.error)
            return
        self._seconds = execution.spans.compute_infer / 1e9
        self._statistics.executed(sum(job.rows for job in jobs), execution.spans)
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
        if request.spans is not None:
            request.spans.append(spans)
        self._statistics.succeeded(checked.rows, time.monotonic_ns() - arrived_ns, spans)

    def _count_failure(self, arrived_ns: int, reason: FailureReason) -> None:
        self._statistics.failed(time.monotonic_ns() - arrived_ns, reason)

    def _fail(self, job: Job, error: FoveaError, reason: FailureReason) -> None:
        self._count_failure(job.arrived_ns, reason)
        if not job.future.done():
            job.future.set_exception(error)

    def _look_at(self, error: FoveaError) -> None:
        """Note an error after which the engine cannot run again."""
        if isinstance(error, DeviceLost):
            self.failure = str(error)
            self._turn_away(ModelNotReady(self.failure))

    def _turn_away(self, error: FoveaError) -> None:
        """Fail every request in the queue."""
        for job in self._waiting.take(len(self._waiting)):
            job.leave_queue()
            self._fail(job, error, FailureReason.OTHER)
