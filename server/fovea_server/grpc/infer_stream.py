"""One ModelStreamInfer call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from fovea_preprocess.errors import FoveaError
from fovea_server.grpc.calls import Context, refuse
from fovea_server.grpc.infer_response import streamed_bytes, streamed_error

Outcome = bytes | tuple[str, FoveaError]
"""The bytes of an answer, or the id of a request and what was wrong with it."""

# A client that sends this stops at its first error, which it then gets as the call's status.
_STRICT = ("triton_grpc_error", "true")
# Bytes of requests and answers that a stream holds before it reads on. A request may be larger.
_MOST_BYTES = 64 << 20


class InferStream:
    """Runs a stream's requests side by side, and answers them in their order.

    Args:
        infer: runs a request; never raises a FoveaError.
        most: requests under way at once; more are not read until there is room.
    """

    def __init__(self, infer: Callable[[bytes], Awaitable[Outcome]], most: int) -> None:
        self._infer = infer
        self._most = most
        # Requests that are not answered yet, and the bytes of them and of their answers.
        self._under_way = self._held = 0
        self._freed = asyncio.Event()
        # In the order of the requests; None follows the last.
        self._begun: asyncio.Queue[asyncio.Task[Outcome] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer until the client has said all; cancelling this cancels what is under way."""
        strict = _STRICT in (context.invocation_metadata() or ())
        self._reader = asyncio.create_task(self._read(requests))
        try:
            while (task := await self._begun.get()) is not None:
                outcome = await task
                if isinstance(outcome, bytes):
                    await context.write(streamed_bytes(outcome))
                elif strict:
                    await refuse(context, outcome[1])
                else:
                    await context.write(streamed_error(outcome[0], str(outcome[1])))
                self._under_way -= 1
                self._hold(-_size(outcome))
        finally:
            for running in (self._reader, *self._tasks):
                running.cancel()

    def close(self) -> None:
        """Read no more; what was read is answered, then the stream ends."""
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                while not self._has_room(len(data)):
                    self._freed.clear()
                    await self._freed.wait()
                self._under_way += 1
                self._held += len(data)
                task = asyncio.ensure_future(self._answer(data))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._begun.put_nowait(task)
        finally:
            self._begun.put_nowait(None)

    async def _answer(self, data: bytes) -> Outcome:
        outcome = await self._infer(data)
        self._hold(_size(outcome) - len(data))
        return outcome

    def _has_room(self, size: int) -> bool:
        if not self._under_way:
            return True
        return self._under_way < self._most and self._held + size <= _MOST_BYTES

    def _hold(self, more: int) -> None:
        self._held += more
        self._freed.set()


def _size(outcome: Outcome) -> int:
    return len(outcome) if isinstance(outcome, bytes) else 0
