"""The v2 protocol as an ASGI application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from fovea_preprocess.errors import BodyTimeout, FoveaError, QueueFull
from fovea_server.http.front import ID_HEADER, LARGE_ANSWER
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import ClientLeft, receive_body, stopped, unless_client_leaves
from fovea_server.http.v2.answers import error_answer
from fovea_server.http.v2.front import V2Front
from fovea_server.log_lines import REQUEST_ID
from fovea_server.traffic.client import CLIENT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class V2App:
    """Serves the v2 protocol under any ASGI server, and in tests without a socket.

    It answers `/v2/...` at the root of a server or below a mount point. `fovea serve` does not use
    it: its own connections (`http/connection/`) are faster, and have further limits.

    Example:
        V2App(V2Front(service))
    """

    def __init__(self, front: V2Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan of the server."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            raise ValueError(f"the v2 protocol is served over HTTP, not over {scope['type']}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, query = _path(scope), scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        request = self._front.admit(
            scope["method"], target, dict(scope["headers"]), scope.get("client")
        )
        REQUEST_ID.set(request.id)
        CLIENT.set(request.client or "")
        sent, size = None, 0
        try:
            answer = request.answer or await self._answer(request, receive)
            sent, size = await self._send(answer, request, send)
        except ClientLeft:
            pass
        finally:
            self._front.report(request, sent, size)

    async def _answer(self, request: Request, receive: Receive) -> Response:
        try:
            with self._front.budget.body() as request.hold:
                await self._receive(request, receive)
                try:
                    return await unless_client_leaves(receive, self._front.answer(request))
                except asyncio.CancelledError:
                    # As `stopped` says.
                    return error_answer(stopped())
        except FoveaError as error:
            answer = error_answer(error)
            # The server drops the rest of another refused body: most clients read the answer only
            # after sending.
            if isinstance(error, BodyTimeout):
                answer.headers.append((b"connection", b"close"))
            return answer
        finally:
            request.body = b""
            request.reservation.release()

    async def _receive(self, request: Request, receive: Receive) -> None:
        settings = self._front.service.settings
        limit, declared = settings.http_max_input_size, request.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise self._front.too_large(int(declared))
        refused = self._front.too_large(None)
        request.body = await receive_body(
            receive, request.hold, limit, refused, settings.body_timeout_s
        )

    async def _send(self, answer: Response, request: Request, send: Send) -> tuple[Response, int]:
        """Send an answer, or an error over budget; return it and the bytes sent of its body."""
        size = sum(map(len, answer.body))
        if large := size >= LARGE_ANSWER:
            try:
                self._front.budget.take(size)
            except QueueFull as full:
                return await self._send(error_answer(full), request, send)
        try:
            headers = [(b"content-type", answer.media_type), (ID_HEADER, request.id.encode())]
            headers += (*answer.headers, *self._front.cors.headers(request.headers))
            headers.append((b"content-length", b"%d" % size))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if request.method == "HEAD":
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
                self._front.budget.give_back(size)


def _path(scope: Scope) -> str:
    """Return the quoted path below the mount point."""
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    root = scope.get("root_path")
    return path.removeprefix(quote(root)) if root else path


async def _live(receive: Receive, send: Send) -> None:
    """Confirm the start and the end of the server; the service is closed by its owner."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
