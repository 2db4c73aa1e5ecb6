"""Receives and decompresses bodies within limits, and detects clients that disconnect."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fovea_preprocess.errors import BodyTooLarge, DeadlineExceeded, ShuttingDown

if TYPE_CHECKING:
    from starlette.types import Receive

TooLarge = Callable[[], BodyTooLarge]
"""Function that makes the error for a body over its limit.

A function is needed because a raised error refers to its stack frame, and the frame refers to an
error that was created before. The body would stay in memory until the next garbage collection.
"""

# Time in seconds after which `Watch` begins to detect disconnected clients. Most requests are
# answered earlier.
_QUICK_S = 0.02
# The first number of bytes is decompressed on the event loop. The rest is decompressed in a thread,
# in steps of the second number of bytes.
_FIRST, _PIECE = 65_536, 1 << 20
# Number of compressed bytes per step. zlib copies the unused rest of these bytes in each step, so
# the number is small.
_PACKED = 65_536
# Window bits with which zlib detects and decompresses both gzip and deflate.
_EITHER = 32 + zlib.MAX_WBITS


class ClientLeft(Exception):
    """Raised if the client closed its connection before it received the response."""


class Watch:
    """Context manager that cancels a request whose client disconnects or whose timeout expires.

    Enter the context manager in the task that answers the request. It does not detect disconnects
    in the first `_QUICK_S` seconds. Most requests are answered earlier, and a watch from the start
    would take as much CPU time as parsing the request's JSON.

    Args:
        receive: ASGI function that receives messages. Other code must not call it at the same time.
        timeout_s: timeout of the whole request in seconds from `began`; None for no timeout.
        began: start of the request by `time.monotonic`.

    Attributes:
        is_whole: True if the whole body was received.

    Raises:
        ClientLeft: the client has disconnected.
        DeadlineExceeded: the request exceeded `timeout_s`.
    """

    def __init__(self, receive: Receive, timeout_s: float | None, began: float) -> None:
        self._receive, self._timeout_s, self._began = receive, timeout_s, began
        self.is_whole = False
        self._whole: asyncio.Event | None = None
        self._worker: asyncio.Task[Any]
        self._looking: asyncio.TimerHandle | asyncio.Task[None]
        # A function that creates the error, because an error that was created before would refer to
        # itself through its stack frames.
        self._why: Callable[[], Exception] | None = None

    def __enter__(self) -> Watch:
        """Start to watch the request."""
        worker = asyncio.current_task()
        assert worker is not None
        self._worker, left = worker, self._remaining_s()
        begin_s = _QUICK_S if left is None else min(_QUICK_S, left)
        self._looking = worker.get_loop().call_later(begin_s, self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Stop watching. If this object cancelled the task, raise the error for it."""
        self._looking.cancel()
        # Remove the reference, because this object and its task or timer refer to each other.
        del self._looking
        if self._why is not None and kind is asyncio.CancelledError:
            self._worker.uncancel()
            raise self._why() from None

    async def body(self, limit: int, too_large: TooLarge) -> bytes | bytearray:
        """Receive the body, of at most `limit` bytes.

        Raises:
            ClientLeft: the client has disconnected before the body was complete.
            BodyTooLarge: the body exceeds the limit; `too_large` makes the error.
            QueueFull: the budget has no room for the body.
            BodyTimeout: the body arrives too slowly; see `too_slow`.
        """
        body: bytes | bytearray = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            # The HTTP server passes a body of declared size in one piece, which needs no copy.
            if not body:
                body = piece
            else:
                if isinstance(body, bytes):
                    body = bytearray(body)
                body += piece
            if len(body) > limit:
                raise too_large()
            more = message.get("more_body", False)
        self.is_whole = True
        if self._whole is not None:
            self._whole.set()
        return body

    def _remaining_s(self) -> float | None:
        if self._timeout_s is None:
            return None
        return self._began + self._timeout_s - time.monotonic()

    def _begin(self) -> None:
        self._looking = self._worker.get_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._remaining_s()):
                if not self.is_whole:
                    self._whole = asyncio.Event()
                    await self._whole.wait()
                # The body is complete, so the next message can only be a disconnect.
                await self._receive()
            self._why = ClientLeft
        except TimeoutError:
            assert self._timeout_s is not None
            self._why = partial(timeout_error, self._timeout_s)
        self._worker.cancel()


def timeout_error(timeout_s: float) -> DeadlineExceeded:
    """Return the error for a request that exceeded its client's timeout."""
    return DeadlineExceeded(
        f"no response within {timeout_s:g} s: set a longer timeout, or send less data"
    )


def cancelled_error() -> ShuttingDown:
    """Return the error for a request that uvicorn cancels because the exit timeout has expired."""
    return ShuttingDown("the server stopped before the response was ready: send the request again")


async def unpack(
    body: bytes | bytearray, hold: Callable[[int], None], limit: int, too_large: TooLarge
) -> bytearray:
    """Decompress a gzip or deflate body.

    `hold` counts the decompressed bytes, and may raise QueueFull.

    Raises:
        BodyTooLarge: the decompressed body exceeds `limit`; `too_large` makes the error.
        zlib.error: the body is neither gzip nor deflate.
    """
    unpacked = bytearray()
    async for piece in _pieces(memoryview(body)):
        hold(len(piece))
        unpacked += piece
        if len(unpacked) > limit:
            raise too_large()
    return unpacked


async def _pieces(body: memoryview) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(_EITHER)
    piece = b""
    for at in range(0, len(body), _PACKED):
        left: bytes | memoryview = body[at : at + _PACKED]
        while left and not unpacker.eof:
            if at or piece:
                # zlib releases the GIL, so other threads can run.
                piece = await asyncio.to_thread(unpacker.decompress, left, _PIECE)
            else:
                piece = unpacker.decompress(left, _FIRST)
            yield piece
            left = unpacker.unconsumed_tail
    yield unpacker.flush()
