"""The scheduler interface, which transports call to run models, and wrappers of schedulers."""

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
    """Counts the requests in flight in a scheduler, and rejects new requests once it is closed.

    Each request enters the gate as a context manager, before its first `await`.

    Attributes:
        inside: number of requests in flight.
        locked: True after `close` has waited for the requests in flight; then `check` raises an
            error.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False
        self.locked = False

    def open_for(self, request: Request) -> InflightGate:
        """Return the context manager that counts one request.

        Raises:
            ShuttingDown: the gate is closed.
        """
        if self._closed:
            raise _stopped_error(request)
        return self

    def check(self, request: Request) -> None:
        """Raise ShuttingDown if the gate is closed and the time for requests in flight is over."""
        if self.locked:
            raise _stopped_error(request)

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(self, *error: object) -> None:
        self.inside -= 1

    def close(self, timeout_s: float) -> None:
        """Reject new requests; block until all requests in flight end, or the timeout is over."""
        self._closed = True
        until = time.monotonic() + timeout_s
        while self.inside and time.monotonic() < until:
            time.sleep(0.01)
        self.locked = True


class Scheduler(ABC):
    """Queues requests, forms batches, and returns responses.

    Attributes:
        gate: counts the requests in flight.
    """

    def __init__(self) -> None:
        self.gate = InflightGate()

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """Bytes that identify the loaded model; they change if any part of it is loaded again."""

    @property
    def failure(self) -> str | None:
        """The reason why the scheduler can never respond again; None while it can respond."""
        return None

    @property
    def pending(self) -> int:
        """Number of accepted requests that no engine has received yet."""
        return 0

    @property
    def accepted(self) -> int:
        """Number of accepted requests without a response; `--max-queue` limits the number."""
        return 0

    def holds(self, sequence: int | str) -> bool:
        """Return whether the sequence has begun in this scheduler and has not ended."""
        return False

    @abstractmethod
    async def infer(self, request: InferRequest) -> InferResponse:
        """Return the response to a request; a cancelled call removes its request from the queue.

        Raises:
            InvalidRequest: the request does not fit the model; the message has Triton's wording.
            QueueFull: the queue has no room for the request.
            DeadlineExceeded: the request waited in the queue longer than its timeout.
            ModelNotReady: the model can no longer respond.
            ShuttingDown: the server or the model is stopping.
            InferenceFailed: the engine rejected the input or failed.
        """

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Return one result or error for each image, in the order of the images in the request.

        Only schedulers of models that take images implement this method.

        Raises:
            FoveaError: one of the errors of `infer`.
        """
        raise NotImplementedError

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests within the timeout, then stop; the engine stays open."""
        self.gate.close(timeout_s)


class SchedulerWrapper(Scheduler):
    """Passes all calls on to an inner scheduler; subclasses override `infer`."""

    def __init__(self, inside: Scheduler) -> None:
        # A wrapper has its own gate, because its requests wait here before they enter `inside`.
        super().__init__()
        self._inside = inside

    @property
    def identity(self) -> bytes:
        """Return the identity of the inner scheduler."""
        return self._inside.identity

    @property
    def failure(self) -> str | None:
        """The reason why the inner scheduler can never respond again; None while it can respond."""
        return self._inside.failure

    def holds(self, sequence: int | str) -> bool:
        """Return whether the sequence has begun in the inner scheduler and has not ended."""
        return self._inside.holds(sequence)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Return the results of the inner scheduler."""
        return await self._inside.predict(request)

    @property
    def pending(self) -> int:
        """Number of requests that no engine has received yet."""
        return self._inside.pending

    @property
    def accepted(self) -> int:
        """Number of requests without a response."""
        return self._inside.accepted

    def close(self, timeout_s: float) -> None:
        """Close this gate, then the inner scheduler, within one timeout."""
        until = time.monotonic() + timeout_s
        super().close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))


class OrderedScheduler(SchedulerWrapper):
    """Returns responses in the order of their requests (`preserve_ordering`)."""

    def __init__(self, inside: Scheduler) -> None:
        super().__init__(inside)
        self._last: asyncio.Future[None] | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Return the response after the responses to all earlier requests."""
        async with self._turn_of(request):
            return await self._inside.infer(request)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Return the results after the responses to all earlier requests."""
        async with self._turn_of(request):
            return await self._inside.predict(request)

    @asynccontextmanager
    async def _turn_of(self, request: Request) -> AsyncIterator[None]:
        """Run the block immediately, but leave it only after all earlier requests have ended."""
        before = self._last
        with self.gate.open_for(request):
            self._last = mine = asyncio.get_running_loop().create_future()
            try:
                yield
            finally:
                try:
                    if before is not None and not before.done():
                        # `shield` keeps the earlier request running if this request is cancelled.
                        await asyncio.shield(before)
                finally:
                    # A cancelled request also waits for the request before it, so that the order of
                    # the later requests stays correct.
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
    """Run a call in a thread, and return its result.

    A cancelled caller waits until the call ends, because threads cannot be stopped.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
