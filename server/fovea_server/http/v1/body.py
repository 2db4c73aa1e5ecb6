"""Reading a request's body: never more than the limit, never longer than the time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from starlette.requests import Request

from fovea_preprocess.errors import BodyTimeout, BodyTooLarge, InvalidRequest
from fovea_preprocess.size import size_text
from fovea_server.http.unpack import unpack


async def read_body(
    request: Request, take: Callable[[int], None], *, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, as it was before it was compressed.

    Args:
        request: of which nothing has been read.
        take: is told the size of each piece, and may refuse it.
        max_bytes: the most.
        timeout_s: the longest.

    Raises:
        QueueFull: `take` refused.
        BodyTooLarge: declared or found to be over the limit, as soon as that is known.
        BodyTimeout: it did not arrive in time.
        InvalidRequest: it is empty, or not compressed as it claims or as is understood.
        starlette.requests.ClientDisconnect: the client went away.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip", "deflate"):
        raise InvalidRequest(
            f"Content-Encoding '{encoding}' is not understood; send it plain, or in gzip or deflate"
        )
    too_large = BodyTooLarge(
        f"the body is over the limit of {size_text(max_bytes)}: send less at once, or raise the "
        "limit with --http-max-input-size (bytes)"
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                take(len(chunk))
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    request.state.body_read = True
    if not size:
        raise InvalidRequest("the body is empty; send an image, a form with images, or JSON")
    # The usual body arrives in many chunks; this is the one copy it gets.
    body = b"".join(chunks)
    if encoding == "identity":
        return body
    try:
        return bytes(await unpack(body, take, max_bytes, too_large))
    except zlib.error:
        raise InvalidRequest(f"the body is not {encoding}, as its header says") from None
