"""Middleware that gives each request an ID, and counts and logs its response."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from fovea_server.traffic.call import CLIENT_LEFT, REQUEST_ID_HEADER, Call, fields, lookup
from fovea_server.traffic.traffic import Traffic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ID = REQUEST_ID_HEADER.encode()


class CallMiddleware:
    """Middleware that counts and logs the requests of an ASGI application.

    The middleware stores a `Call` object as `call` in the state of a request. The application adds
    the model and the operation to the call. It stores the error of the response as `error` in the
    state.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI specifies."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        call = begin(scope, self._traffic)
        call.enter()
        status, size = CLIENT_LEFT, 0

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_ID, call.id.encode())]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            path = scope["path"]
            call.model = call.model or scope.get("path_params", {}).get("name", "")
            if (call.method, status) == ("GET", 200):
                # Count as probes, because the web page requests these paths every few seconds.
                call.probe |= path in ("/v1/models", f"/v1/models/{call.model}/statistics")
            call.probe |= path == "/metrics"
            call.end(status, size, state.get("error"))


def begin(scope: Scope, traffic: Traffic) -> Call:
    """Create the `Call` of a request, and store `call` and `headers` in the request's state."""
    client = scope["client"][0] if scope.get("client") else None
    headers = fields(scope["headers"])
    call = Call(traffic, scope["method"], target_of(scope), client, lookup(headers))
    scope["state"] |= {"call": call, "headers": headers}
    return call


def target_of(scope: Scope) -> str:
    """Return the quoted path below the mount point of the application, with the query."""
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    if root := scope.get("root_path"):
        path = path.removeprefix(quote(root))
    query: bytes = scope["query_string"]
    return f"{path}?{query.decode('latin-1')}" if query else path
