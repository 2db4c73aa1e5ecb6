"""Receives and decompresses bodies within limits, and notices clients that leave."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fovea_preprocess.errors import BodyTooLarge, DeadlineExceeded, ShuttingDown
from fovea_server.byte_budget import SLOWEST, too_slow

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

TooLarge = Callable[[], BodyTooLarge]
"""Makes the error for a body over its limit.

An error that a function is given and raises refers to its frame, and the frame to it: what the body
has by then would stay in memory until the garbage collector comes by.
"""

# Answers that take longer are given up when their client leaves.
_QUICK_S = 0.02
# Bytes decompressed on the event loop, and from then on in a thread.
_FIRST, _PIECE = 65_536, 1 << 20
# Compressed bytes taken in one step; the rest of them is copied each time.
_PACKED = 65_536
# zlib's code for gzip or deflate, whichever it finds.
_EITHER = 32 + zlib.MAX_WBITS


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


async def receive_body(
    receive: Receive,
    hold: Callable[[int], None],
    limit: int,
    too_large: TooLarge,
    timeout_s: float,
) -> bytes:
    """Receive a body of at most `limit` bytes; `hold` counts them, and may raise.

    Raises:
        ClientLeft: the body is incomplete.
        BodyTooLarge: `too_large`, as soon as the limit is exceeded.
        BodyTimeout: it arrives too slowly, see `too_slow`.
    """
    pieces: list[bytes] = []
    size, more = 0, True
    enough = step = int(SLOWEST * timeout_s)
    try:
        async with asyncio.timeout(timeout_s) as window:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                piece = message.get("body", b"")
                hold(len(piece))
                size += len(piece)
                if size > limit:
                    raise too_large()
                if size >= enough:
                    enough = size + step
                    window.reschedule(asyncio.get_running_loop().time() + timeout_s)
                pieces.append(piece)
                more = message.get("more_body", False)
    except TimeoutError:
        raise too_slow(timeout_s) from None
    # A body in many pieces is copied once, here.
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def in_time(work: Coroutine[Any, Any, T], timeout_s: float | None, began: float) -> T:
    """Await work that may take `timeout_s` from `began`, by `time.monotonic`; None for no limit.

    Raises:
        DeadlineExceeded: it took longer, and is cancelled.
    """
    if timeout_s is None:
        return await work
    try:
        async with asyncio.timeout(began + timeout_s - time.monotonic()):
            return await work
    except TimeoutError:
        raise late(timeout_s) from None


def late(timeout_s: float) -> DeadlineExceeded:
    """Make the error for a request that took longer than its client allows."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s; allow more time or send less")


def stopped() -> ShuttingDown:
    """Make the error for a request that uvicorn cancels, as it outlasts the time to exit."""
    return ShuttingDown("the server stopped before the answer was there; send again")


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await the answer of a request whose body is read; cancel it and raise if the client leaves.

    Raises:
        ClientLeft: the client left first.
    """
    worker = asyncio.current_task()
    assert worker is not None
    left = False
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal left
        # After the body, only the disconnect is received.
        await receive()
        left = True
        worker.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    loop = asyncio.get_running_loop()
    # Most answers are there before, and a task for each would cost as much as their JSON.
    timer = loop.call_later(_QUICK_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if left:
            worker.uncancel()
            raise ClientLeft from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


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
