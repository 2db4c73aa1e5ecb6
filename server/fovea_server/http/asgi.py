"""Requests of fronts under any ASGI server: uvicorn's own connections, Ray's proxies, tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from fovea_preprocess.errors import (
    BodyTimeout,
    DeadlineExceeded,
    FoveaError,
    Unsupported,
)
from fovea_server.http.front import ID_HEADER, LARGE_ANSWER, Front
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import (
    ClientLeft,
    in_time,
    receive_body,
    stopped,
    unless_client_leaves,
)
from fovea_server.traffic.call import CLIENT_LEFT, fields

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_LATE = (BodyTimeout, DeadlineExceeded)


class FrontApp:
    """Answers what one of the fronts takes, and leaves all else to another application.

    It serves at the root of a server, or below a mount point.
    """

    def __init__(self, fronts: Sequence[Front], others: ASGIApp) -> None:
        self._fronts, self._others = fronts, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""
        if scope["type"] == "http":
            method, target, headers = scope["method"], _target(scope), scope["headers"]
            for front in self._fronts:
                if front.takes(method, target, headers):
                    text = target.decode("latin-1")
                    request = front.admit(method, text, fields(headers), scope.get("client"))
                    await _serve(front, request, receive, send)
                    return
        await self._others(scope, receive, send)


async def _serve(front: Front, request: Request, receive: Receive, send: Send) -> None:
    request.call.enter()
    status, size, error = CLIENT_LEFT, 0, None
    try:
        answer = request.answer or await _answer(front, request, receive)
        if request.answer is not None and not front.keeps_refused:
            _close(answer)
        answer, size = await _send(front, answer, request, send)
        status, error = answer.status, answer.error
    except ClientLeft:
        pass
    finally:
        request.call.end(status, size, error)


async def _answer(front: Front, request: Request, receive: Receive) -> Response:
    received = False

    async def answered() -> Response:
        nonlocal received
        with front.budget.body() as request.hold:
            await _receive(front, request, receive)
            received = True
            return await unless_client_leaves(receive, front.answer(request))

    try:
        return await in_time(answered(), request.timeout_s, request.call.began)
    except asyncio.CancelledError:
        # As `stopped` says.
        return front.error_answer(stopped())
    except FoveaError as error:
        answer = front.error_answer(error)
        # uvicorn drops the rest of a refused body on a connection that is kept.
        if not (received or (front.keeps_refused and not isinstance(error, _LATE))):
            _close(answer)
        return answer
    finally:
        request.body = b""
        request.reservation.release()


async def _receive(front: Front, request: Request, receive: Receive) -> None:
    settings = front.service.settings
    limit, declared = settings.http_max_input_size, request.headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise front.too_large(int(declared))
    refused = partial(front.too_large, None)
    request.body = await receive_body(
        receive, request.hold, limit, refused, settings.body_timeout_s
    )


def _close(answer: Response) -> None:
    """Close the connection behind an answer: the rest of the body will not be read."""
    answer.headers.append((b"connection", b"close"))


async def _send(
    front: Front, answer: Response, request: Request, send: Send
) -> tuple[Response, int]:
    """Send an answer, or an error over budget; return it and the bytes sent of its body."""
    if answer.successor is not None:
        answer = front.error_answer(Unsupported("this server's connections cannot be taken over"))
    size = sum(map(len, answer.body))
    if large := size >= LARGE_ANSWER:
        if not front.budget.has_room(size):
            return await _send(front, front.error_answer(front.budget.full()), request, send)
        front.budget.count_answer(size)
    try:
        headers = [(b"content-type", answer.media_type), (ID_HEADER, request.call.id.encode())]
        headers += (*answer.headers, *front.cors.headers(request.headers))
        headers.append((b"content-length", b"%d" % size))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if request.call.method == "HEAD":
            await send({"type": "http.response.body"})
            return answer, 0
        if not large:
            await send({"type": "http.response.body", "body": b"".join(answer.body)})
            return answer, size
        for piece in answer.body:
            await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        await send({"type": "http.response.body"})
        return answer, size
    finally:
        if large:
            front.budget.count_answer(-size)


def _target(scope: Scope) -> bytes:
    """Return the quoted path below the mount point, and the query."""
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]).encode() if raw is None else raw
    if root := scope.get("root_path"):
        path = path.removeprefix(quote(root).encode())
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path
