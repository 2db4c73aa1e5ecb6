"""Requests and answers between the ingress and a replica: bytes, as clients send them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

Headers = list[tuple[bytes, bytes]]


class HttpRequest(NamedTuple):
    """A request over HTTP; `path` is quoted, and `client` an address."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    client: str = ""


class HttpAnswer(NamedTuple):
    """Its answer."""

    status: int
    headers: Headers
    body: bytes


async def asked(app: ASGIApp, request: HttpRequest) -> HttpAnswer:
    """Ask an ASGI application, without a connection; a cancelled call is a client that leaves."""
    status, headers, pieces = 500, [], []  # type: int, Headers, list[bytes]
    bodies, left = [request.body], asyncio.Event()

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        else:
            pieces.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path.decode("latin-1")),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": (request.client, 0) if request.client else None,
        "server": None,
        "state": {},
    }
    answering = asyncio.ensure_future(app(scope, receive, send))
    try:
        await asyncio.shield(answering)
    except asyncio.CancelledError:
        left.set()
        await answering
        raise
    return HttpAnswer(status, headers, b"".join(pieces))
