"""The addresses that have WebSockets, and what a request gets there that asks for none."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from fovea_preprocess.errors import NotFound
from fovea_server.dataplane.service import Service
from fovea_server.http.v1.route import call_of
from fovea_server.streams.events.following import EventLogs
from fovea_server.streams.sockets.events import Events
from fovea_server.streams.sockets.frames import Frames
from fovea_server.streams.sockets.socket import MakeConversation, Sockets
from fovea_server.tracking.tracks import Tracks
from fovea_server.traffic.call import Call


def socket_routes(sockets: Sockets, service: Service, logs: EventLogs, tracks: Tracks) -> APIRouter:
    """Make the routes; those of plain requests are in no document."""
    router = APIRouter()

    def frames(connection: HTTPConnection) -> MakeConversation:
        given, query = connection.path_params, connection.url.query

        def make(call: Call) -> Frames:
            call.model = given["name"]
            version = _version(given["version"]) if "version" in given else None
            return Frames(service, tracks, call, version, query)

        return make

    def events(connection: HTTPConnection) -> MakeConversation:
        stream, query = connection.path_params["stream"], connection.url.query
        return lambda call: Events(service, logs, call, stream, query)

    async def stream(websocket: WebSocket) -> None:
        await sockets.serve(websocket, frames(websocket))

    async def follow(websocket: WebSocket) -> None:
        await sockets.serve(websocket, events(websocket))

    async def nowhere(websocket: WebSocket) -> None:
        def make(call: Call) -> Frames:
            raise NotFound(f"there is no WebSocket at {websocket.url.path[:200]}: see docs/http.md")

        await sockets.serve(websocket, make)

    async def plain(request: Request) -> Response:
        sockets.refuse(call_of(request), request.headers.raw, frames(request))

    for path in ("/v1/models/{name}/stream", "/v1/models/{name}/versions/{version}/stream"):
        router.add_websocket_route(path, stream)
        router.add_route(path, plain, include_in_schema=False)
    router.add_websocket_route("/v1/streams/{stream}/events", follow)
    router.add_websocket_route("/{path:path}", nowhere)
    return router


def _version(text: str) -> int:
    if re.fullmatch("0*[1-9][0-9]{0,99}", text) is None:
        raise NotFound(f"there is no version '{text[:60]}': versions are whole numbers from 1 up")
    return int(text)
