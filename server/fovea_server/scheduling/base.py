"""The interface between transports and the engines that answer tensors, and wrappers of it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from fovea_server.scheduling.inflight_gate import InflightGate
from fovea_server.tensors.messages import InferRequest, InferResponse


class Scheduler(Protocol):
    """Queues requests, forms batches, and returns the answers."""

    @property
    def identity(self) -> bytes:
        """Identify the loaded model: the value changes when a part of it is loaded again."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again; None while it can."""
        ...

    @property
    def pending(self) -> int:
        """Number of requests accepted and not yet given to an engine."""
        ...

    @property
    def inflight(self) -> int:
        """Number of requests accepted and not yet answered."""
        ...

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; cancelling this frees its place in the queue.

        Raises:
            InvalidRequest: it does not fit the model; Triton's text.
            QueueFull: the queue is full, or the request waited longer than its timeout.
            ModelNotReady, ShuttingDown: the model cannot answer any more.
            InferenceFailed: the engine refused or broke.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests within the timeout, then stop. The engine stays open."""
        ...


class HasScheduler(Protocol):
    """A model that answers requests."""

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""
        ...


class SchedulerWrapper:
    """Passes everything but `infer` on to the scheduler inside."""

    def __init__(self, inside: Scheduler) -> None:
        self._inside = inside
        # Requests may be in flight here that have not entered `inside` yet.
        self._gate = InflightGate()

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self._inside.identity

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again, if any."""
        return self._inside.failure

    @property
    def pending(self) -> int:
        """Number of requests not yet given to an engine."""
        return self._inside.pending

    @property
    def inflight(self) -> int:
        """Number of requests not yet answered."""
        return self._gate.inside

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        until = time.monotonic() + timeout_s
        self._gate.close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))


class OrderedScheduler(SchedulerWrapper):
    """Returns answers in the order of their requests (`preserve_ordering`)."""

    def __init__(self, inside: Scheduler) -> None:
        super().__init__(inside)
        self._last: asyncio.Future[None] | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request after all that came before it."""
        with self._gate.open_for(request):
            return await self._in_order(request)

    async def _in_order(self, request: InferRequest) -> InferResponse:
        before = self._last
        self._last = mine = asyncio.get_running_loop().create_future()
        try:
            return await self._inside.infer(request)
        finally:
            try:
                if before is not None and not before.done():
                    # Shielded: cancelling this request must not cancel the one before it.
                    await asyncio.shield(before)
            finally:
                # Keeps the order even if this request was cancelled.
                if before is None or before.done():
                    mine.set_result(None)
                else:
                    before.add_done_callback(lambda _: mine.set_result(None))
