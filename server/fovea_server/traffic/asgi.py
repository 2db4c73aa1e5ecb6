"""Gives the requests of an ASGI application their id, and counts and logs their answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fovea_server.log_lines import REQUEST_ID
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.client import CLIENT
from fovea_server.traffic.request_id import HEADER, request_id
from fovea_server.traffic.spans import SPAN, RequestSpan
from fovea_server.traffic.traffic import Traffic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = HEADER.encode()
_PROBES = ("/v1/health/", "/metrics/")


class WithTraffic:
    """An ASGI application whose requests are counted and logged.

    The requests of a `Front`, with a path of their own, never come here. An application puts the
    model that it asks, where the path does not name it, into the state of the request.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI specifies it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path: str = scope["path"]
        own_id = request_id(_text(headers, _HEADER))
        REQUEST_ID.set(own_id)
        CLIENT.set(scope["client"][0] if scope["client"] else "")
        span: RequestSpan | None = None
        if (tracer := self._traffic.tracer) is not None and path.endswith("/predict"):
            span = tracer.begin(_text(headers, b"traceparent"), _text(headers, b"tracestate"))
            SPAN.set(span)
        # 499 is what proxies log where the client went away before there was an answer.
        status, size = 499, 0

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_HEADER, own_id.encode())]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            state = scope.get("state", {})
            model = state.get("model") or scope.get("path_params", {}).get("name", "")
            predicts = path.endswith("/predict") and scope["method"] == "POST"
            if model and (predicts or "model" in state):
                if span is not None:
                    route = scope["route"].path.replace("{name}", "{model}")
                    span.name, span.id = f"POST {route}", own_id
                self._traffic.inferred(model, status, began, state.get("error"), span)
            client = scope["client"][0] if scope["client"] else None
            target = b"?".join(filter(None, (scope["raw_path"], scope["query_string"])))
            text, method = target.decode("latin-1"), scope["method"]
            if "control" in state:
                secret, origin = state["control"], _text(headers, b"origin")
                self._traffic.controlled(client, secret, origin, f"{method} {text!r}", status)
            # Pages read these every few seconds.
            polled = (scope["method"], status) == ("GET", 200)
            polled &= path in ("/v1/models", f"/v1/models/{model}/statistics")
            if (access_log := self._traffic.access_log) is not None:
                access_log.add(
                    Access(client or "-", method, text, model, status, size, began, own_id),
                    probe=f"{path}/".startswith(_PROBES) or polled,
                )


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
