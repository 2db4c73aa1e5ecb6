"""The interface between transports and the engines that answer tensors, and wrappers of it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fovea_preprocess.errors import FoveaError, ShuttingDown
from fovea_server.tensors.check import request_prefix
from fovea_server.tensors.messages import ImageRequest, ImageResult, InferRequest, InferResponse

Request = InferRequest | ImageRequest
T = TypeVar("T")


class InflightGate:
    """Counts the requests in a scheduler, and refuses new ones once it closes.

    A context around each request, entered before its first `await`.

    Attributes:
        inside: number of requests in flight.
        locked: closed, and the time for requests in flight is over.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False
        self.locked = False

    def open_for(self, request: Request) -> InflightGate:
        """Admit a request, in a `with` statement; ShuttingDown if the gate is closed."""
        if self._closed:
            raise _stopped_error(request)
        return self

    def check(self, request: Request) -> None:
        """Raise ShuttingDown if the time for requests in flight is over."""
        if self.locked:
            raise _stopped_error(request)

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(self, *error: object) -> None:
        self.inside -= 1

    def close(self, timeout_s: float) -> None:
        """Refuse new requests and wait for those in flight; blocks, up to the timeout."""
        self._closed = True
        until = time.monotonic() + timeout_s
        while self.inside and time.monotonic() < until:
            time.sleep(0.01)
        self.locked = True


class Scheduler(ABC):
    """Queues requests, forms batches, and returns the answers; `gate` counts those in flight."""

    def __init__(self) -> None:
        self.gate = InflightGate()

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """Identify the loaded model: the value changes when a part of it is loaded again."""

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again; None while it can."""
        return None

    @property
    def pending(self) -> int:
        """Number of requests accepted and not yet given to an engine."""
        return 0

    @property
    def accepted(self) -> int:
        """Number of requests accepted and not yet answered, which `--max-queue` limits."""
        return 0

    def holds(self, sequence: int | str) -> bool:
        """Return True if a sequence of requests has begun here, and not ended."""
        return False

    @abstractmethod
    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; cancelling this frees its place in the queue.

        Raises:
            InvalidRequest: it does not fit the model; Triton's text.
            QueueFull: the queue is full, or the request waited longer than its timeout.
            ModelNotReady, ShuttingDown: the model cannot answer any more.
            InferenceFailed: the engine refused or broke.
        """

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images, in order; an image that fails is answered by its error. Raises as `infer`.

        Only the schedulers of engines that take images have it; nothing calls it on others.
        """
        raise NotImplementedError

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests within the timeout, then stop. The engine stays open."""
        self.gate.close(timeout_s)


class SchedulerWrapper(Scheduler):
    """Passes everything but requests for tensors on to the scheduler inside."""

    def __init__(self, inside: Scheduler) -> None:
        # The gate counts requests that have not entered `inside` yet.
        super().__init__()
        self._inside = inside

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self._inside.identity

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again, if any."""
        return self._inside.failure

    def holds(self, sequence: int | str) -> bool:
        """Return True if a sequence of requests has begun here, and not ended."""
        return self._inside.holds(sequence)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images."""
        return await self._inside.predict(request)

    @property
    def pending(self) -> int:
        """Number of requests not yet given to an engine."""
        return self._inside.pending

    @property
    def accepted(self) -> int:
        """Number of requests not yet answered."""
        return self._inside.accepted

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        until = time.monotonic() + timeout_s
        super().close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))


class OrderedScheduler(SchedulerWrapper):
    """Returns answers in the order of their requests (`preserve_ordering`)."""

    def __init__(self, inside: Scheduler) -> None:
        super().__init__(inside)
        self._last: asyncio.Future[None] | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request after all that came before it."""
        async with self._turn_of(request):
            return await self._inside.infer(request)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images after all requests that came before."""
        async with self._turn_of(request):
            return await self._inside.predict(request)

    @asynccontextmanager
    async def _turn_of(self, request: Request) -> AsyncIterator[None]:
        """Run the block at once, and end after all requests that came before."""
        before = self._last
        with self.gate.open_for(request):
            self._last = mine = asyncio.get_running_loop().create_future()
            try:
                yield
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


def _stopped_error(request: Request) -> ShuttingDown:
    if isinstance(request, ImageRequest):
        return ShuttingDown("the model is being unloaded; send again later")
    return ShuttingDown(
        f"{request_prefix(request)}Server is stopping, scheduler for model has stopped accepting "
        "new inference requests"
    )


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread; a cancelled caller waits for its end, as the thread cannot stop."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
