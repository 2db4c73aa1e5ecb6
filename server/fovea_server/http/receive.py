"""Receives and decompresses bodies within limits, and notices clients that leave."""

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
"""Makes the error for a body over its limit.

An error that a function is given and raises refers to its frame, and the frame to it: what the body
has by then would stay in memory until the garbage collector comes by.
"""

# Requests that take longer are given up when their client leaves.
_QUICK_S = 0.02
# Bytes decompressed on the event loop, and from then on in a thread.
_FIRST, _PIECE = 65_536, 1 << 20
# Compressed bytes taken in one step; the rest of them is copied each time.
_PACKED = 65_536
# zlib's code for gzip or deflate, whichever it finds.
_EITHER = 32 + zlib.MAX_WBITS


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


class Watch:
    """Ends the work on a request whose client leaves, or whose time is over.

    It is the context of the task that answers. It looks at nothing for the first `_QUICK_S`: to
    watch each request would cost as much as its JSON, and most are answered by then.

    Args:
        receive: of ASGI; nothing else may use it.
        timeout_s: of the whole request, from `began`, by `time.monotonic`; None for no limit.

    Attributes:
        is_whole: True once the body is received.

    Raises:
        ClientLeft: the client left first.
        DeadlineExceeded: it took longer than `timeout_s`.
    """

    def __init__(self, receive: Receive, timeout_s: float | None, began: float) -> None:
        self._receive, self._timeout_s, self._began = receive, timeout_s, began
        self.is_whole = False
        self._whole: asyncio.Event | None = None
        self._worker: asyncio.Task[Any]
        self._looking: asyncio.TimerHandle | asyncio.Task[None]
        # Not the error: it would refer to itself by its frames.
        self._why: Callable[[], Exception] | None = None

    def __enter__(self) -> Watch:
        """Begin."""
        worker = asyncio.current_task()
        assert worker is not None
        self._worker, left = worker, self._remaining_s()
        begin_s = _QUICK_S if left is None else min(_QUICK_S, left)
        self._looking = worker.get_loop().call_later(begin_s, self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End; raise why the work was ended."""
        self._looking.cancel()
        # They refer to each other.
        del self._looking
        if self._why is not None and kind is asyncio.CancelledError:
            self._worker.uncancel()
            raise self._why() from None

    async def body(self, limit: int, too_large: TooLarge) -> bytes | bytearray:
        """Receive the body, of at most `limit` bytes.

        Raises:
            ClientLeft: it is incomplete.
            BodyTooLarge: `too_large`, as soon as the limit is exceeded.
            QueueFull: there is no room for it.
            BodyTimeout: it arrives too slowly, see `too_slow`.
        """
        body: bytes | bytearray = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            # One that is declared comes as a whole, and is not copied.
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
                # After the body, only the disconnect is received.
                await self._receive()
            self._why = ClientLeft
        except TimeoutError:
            assert self._timeout_s is not None
            self._why = partial(timeout_error, self._timeout_s)
        self._worker.cancel()


def timeout_error(timeout_s: float) -> DeadlineExceeded:
    """Make the error for a request that took longer than its client allows."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s; allow more time or send less")


def cancelled_error() -> ShuttingDown:
    """Make the error for a request that uvicorn cancels, as it outlasts the time to exit."""
    return ShuttingDown("the server stopped before the answer was there; send again")


async def unpack(
    body: bytes | bytearray, hold: Callable[[int], None], limit: int, too_large: TooLarge
) -> bytearray:
    """Decompress a body, gzip or deflate; `hold` counts the bytes, and may raise.

    Raises:
        BodyTooLarge: `too_large`, as soon as the limit is exceeded.
        zlib.error: it is neither gzip nor deflate.
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
                # zlib lets other threads run.
                piece = await asyncio.to_thread(unpacker.decompress, left, _PIECE)
            else:
                piece = unpacker.decompress(left, _FIRST)
            yield piece
            left = unpacker.unconsumed_tail
    yield unpacker.flush()
