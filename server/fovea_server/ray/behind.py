"""Lets only the Ray fronts of the cluster use the servers of a replica.

A Ray front is the server on a node that forwards requests to replicas. It sends the token of the
replica, which it receives from Serve's controller, and the address of its client, which the replica
logs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hmac import compare_digest
from typing import Any

import grpc
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "fovea-token"
CLIENT = "fovea-client"
"""Header with the IP address of the client that sent the request to the Ray front end."""

_STRANGER = (
    "a replica accepts requests only from the front servers of its cluster: send the request to a "
    "front server"
)


class BehindFront:
    """An ASGI application that accepts only requests with the token.

    It sets the client of the request to the address that the Ray front has sent.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request of a Ray front. The request's client is the client of the front."""
        if scope["type"] != "lifespan":
            given = dict(scope["headers"])
            if not compare_digest(given.get(TOKEN.encode(), b""), self._token):
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close"})
                    return
                refusal = JSONResponse({"error": _STRANGER}, 400, {"connection": "close"})
                await refusal(scope, receive, send)
                return
            scope = {**scope, "client": (given.get(CLIENT.encode(), b"").decode("latin-1"), 0)}
        await self._app(scope, receive, send)


class BehindFrontRpc(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor that rejects gRPC calls without the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Answer the call of a Ray front, with the address of the front's client as the peer."""
        given = dict(handler_call_details.invocation_metadata)
        if not compare_digest(str(given.get(TOKEN, "")).encode(), self._token.encode()):
            return grpc.stream_stream_rpc_method_handler(_refuse)
        handler = await continuation(handler_call_details)
        client = str(given.get(CLIENT, ""))

        async def unary(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            return await handler.stream_unary(requests, _OfClient(context, client))

        async def stream(requests: Any, context: grpc.aio.ServicerContext) -> None:
            await handler.stream_stream(requests, _OfClient(context, client))

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(unary)


class _OfClient:
    """The context of a call, with the address of the Ray front's client as the peer."""

    def __init__(self, context: grpc.aio.ServicerContext, client: str) -> None:
        self._context, self._client = context, client

    def peer(self) -> str:
        return f"ipv6:[{self._client}]:0" if ":" in self._client else f"ipv4:{self._client}:0"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _refuse(_: object, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, _STRANGER)
