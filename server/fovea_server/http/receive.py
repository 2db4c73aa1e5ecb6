"""Receives requests from an ASGI server: bodies within limits, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fovea_preprocess.errors import BodyTimeout, BodyTooLarge

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

# Work that ends sooner is not worth a task that watches the client.
_SHORT_S = 0.02


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


async def receive_body(
    receive: Receive,
    hold: Callable[[int], None],
    limit: int,
    too_large: BodyTooLarge,
    timeout_s: float,
) -> bytes:
    """Receive a body.

    Args:
        receive: of a request whose body is unread.
        hold: counts the bytes; raises QueueFull.
        limit: in bytes.
        too_large: raised as soon as the limit is exceeded.
        timeout_s: for the whole body.

    Raises:
        ClientLeft: the body is incomplete.
        BodyTimeout: it took too long.
    """
    pieces: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                piece = message.get("body", b"")
                hold(len(piece))
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
                more = message.get("more_body", False)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    # A body in many pieces is copied once, here.
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await the answer of a request as long as its client waits for it.

    Args:
        receive: of a request whose body is read.
        work: cancelled if the client leaves first.

    Raises:
        ClientLeft: the client left first.
    """
    worker = asyncio.current_task()
    assert worker is not None
    watcher: asyncio.Task[None] | None = None
    left = False

    async def watch() -> None:
        nonlocal left
        # After the body, only the disconnect is received.
        await receive()
        left = True
        worker.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = asyncio.ensure_future(watch())

    timer = asyncio.get_running_loop().call_later(_SHORT_S, start)
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
