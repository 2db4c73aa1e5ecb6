"""The routes for streams, for their images and events, and for WebSockets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Annotated

import orjson
from fastapi import APIRouter, Path, Request, Response
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket

from fovea_preprocess.errors import FoveaError, InvalidRequest, NotFound
from fovea_server.dataplane.service import Service
from fovea_server.feature import Feature
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.dependencies import (
    INDEX,
    VERSION_PATTERN,
    answer_body,
    call_of,
    check_control,
    parse_json_body,
    require_access,
)
from fovea_server.observability.histogram import Family
from fovea_server.streams.cameras.picture import MJPEG, mjpeg
from fovea_server.streams.cameras.table import StreamTable, model_in
from fovea_server.streams.documents import (
    Removed,
    StreamChange,
    StreamId,
    StreamList,
    StreamSettings,
    StreamStatus,
    described_bytes,
    described_stream,
)
from fovea_server.streams.events.feed import EventLogs, after_of, kind_of, kinds_of
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.sockets.frames import Events, Frames
from fovea_server.streams.sockets.socket import MakeConversation, Sockets, no_socket
from fovea_server.tracking.tracks import Tracks
from fovea_server.traffic.call import CALL, Call

_PICTURE_WAIT_S, _PICTURE_LOOK_S = 5.0, 0.1
# Number of iterations of `EventLogs.follow` without an event after which a comment is sent. An
# iteration takes about a second.
_COMMENT_LOOKS = 15

_NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

ImageName = Annotated[str, Path(description="name of the image", examples=["7.jpg"])]


class Streams(Feature):
    """Server feature: streams, their events, and WebSockets."""

    def __init__(self, service: Service, tracks: Tracks) -> None:
        self._tracks, self._models = tracks, service.models
        self._table = StreamTable(service, tracks.forget)
        self._logs = EventLogs(self._table.feed, self._ending)
        self._service, self._sockets = service, Sockets(service)

    def router(self) -> APIRouter:
        """Return the routes of streams and of WebSockets."""
        router = APIRouter()
        router.include_router(_stream_routes(self._table, self._logs))
        router.include_router(
            _socket_routes(self._sockets, self._service, self._logs, self._tracks)
        )
        return router

    async def start(self) -> None:
        """Start the streams."""
        await self._table.start()

    async def stop(self) -> None:
        """Stop the streams."""
        await self._table.stop()

    def families(self) -> Iterable[Family]:
        """Return the metrics of streams."""
        return chain(self._tracks.families(), self._table.families(), self._sockets.families())

    def _ending(self, stream: str) -> bool:
        """Return whether a response about a stream must end.

        It must end if the API key of the client is no longer valid, or if the server stops.
        """
        call = CALL.get()
        if call is not None and call.again is not None:
            try:
                call.principal = call.again()
                self._table.get(stream)
            except FoveaError:
                return True
        return self._models.draining


def _stream_routes(table: StreamTable, logs: EventLogs) -> APIRouter:
    router = APIRouter(tags=["streams"], prefix="/v1/streams")

    @router.get("", dependencies=INDEX, **described_stream("list_streams", StreamList))
    async def list_streams() -> Response:
        """List the streams with their settings, states, ages and counts."""
        return _json_answer({"streams": table.documents()})

    @router.get(
        "/{stream}", dependencies=INDEX, **described_stream("get_stream", StreamStatus, 404)
    )
    async def get_stream(stream: StreamId) -> Response:
        """Return the settings and the state of one stream."""
        return _json_answer(table.document(stream))

    _add_changing_routes(router, table)
    router.include_router(_picture_routes(table, logs.ending))
    router.include_router(_event_routes(logs))
    return router


def _add_changing_routes(router: APIRouter, table: StreamTable) -> None:
    """Add the routes that change streams. Their clients need the right to change models."""

    @router.post(
        "",
        dependencies=INDEX,
        **described_stream(
            "add_stream", StreamStatus, 400, 404, 409, 413, 422, body=StreamSettings, status=201
        ),
    )
    async def add_stream(request: Request) -> Response:
        """Start a stream. After a restart of the server, the stream starts again."""

        async def work(body: bytes) -> Response:
            given = await parse_json_body(request, body, json_object)
            _check_may_change(request, model_in(given))
            name = given.pop("id", None)
            if not isinstance(name, str):
                raise InvalidRequest(
                    "the request has no id: set id to a text, the ID of the new stream"
                )
            call_of(request).control += f" {name[:64]!r}"
            await table.add(name, given)
            return _json_answer(table.document(name), 201)

        return await answer_body(request, work, None)

    @router.patch(
        "/{stream}",
        dependencies=INDEX,
        **described_stream(
            "change_stream", StreamStatus, 400, 404, 409, 413, 422, body=StreamChange
        ),
    )
    async def change_stream(request: Request, stream: StreamId) -> Response:
        """Restart a stream with changed settings. Its counts and track IDs start again."""
        model = table.model_of(stream)
        _check_may_change(request, model)

        async def work(body: bytes) -> Response:
            given = await parse_json_body(request, body, json_object)
            _check_may_change(request, model_in(given) or model)
            await table.change(stream, given)
            return _json_answer(table.document(stream))

        return await answer_body(request, work, None)

    @router.delete(
        "/{stream}", dependencies=INDEX, **described_stream("remove_stream", Removed, 404, 409)
    )
    async def remove_stream(request: Request, stream: StreamId) -> Response:
        """Stop a stream, and delete its events."""
        _check_may_change(request, table.model_of(stream))
        await table.remove(stream)
        return _json_answer({})


def _picture_routes(table: StreamTable, ending: Callable[[str], bool]) -> APIRouter:
    router = APIRouter(
        tags=["streams"], prefix="/{stream}", dependencies=[*INDEX, require_access("cameras")]
    )

    @router.get("/image", **described_bytes("stream_image", "the newest frame", "image/jpeg"))
    async def image(stream: StreamId) -> Response:
        """Return the newest frame with IDs, trails, lines and zones drawn on it.

        If there is no frame, the status is 404 and the body has the reason.
        """
        picture, camera = table.picture(stream), table.get(stream)
        until = asyncio.get_running_loop().time() + _PICTURE_WAIT_S
        while (jpeg := await picture.jpeg()) is None:
            if camera.over or asyncio.get_running_loop().time() > until:
                state, reason = camera.state
                because = f"{state}: {reason}" if reason else state
                raise NotFound(f"stream {stream} has no image yet: it is {because}")
            await asyncio.sleep(_PICTURE_LOOK_S)
        return Response(jpeg, headers=_NOT_KEPT, media_type="image/jpeg")

    # The route is not in the OpenAPI document, because client generators reject this media type.
    @router.get("/video", include_in_schema=False)
    async def video(stream: StreamId) -> Response:
        """Send JPEG images, up to five per second, until the stream ends or its settings change."""
        parts = mjpeg(table.picture(stream), partial(ending, stream))
        return StreamingResponse(parts, headers=_NOT_KEPT, media_type=MJPEG)

    return router


def _event_routes(logs: EventLogs) -> APIRouter:
    router = APIRouter(
        tags=["streams"],
        prefix="/{stream}/events",
        dependencies=[*INDEX, require_access("cameras")],
    )

    @router.get(
        "",
        **described_bytes(
            "stream_events",
            "events, each with its number; JSON lines if Accept is application/x-ndjson",
            "text/event-stream",
            "application/x-ndjson",
            after=(
                "number of the last event that you have (like the header Last-Event-ID), or -50 "
                "for the last 50 events; default: the number of the newest event"
            ),
            kinds="kinds of events to send, separated by commas; default: all kinds",
        ),
    )
    async def follow(request: Request, stream: StreamId) -> Response:
        """Follow the events of a stream, for example objects that cross lines or enter zones."""
        if "sec-websocket-key" in request.headers:
            raise no_socket()
        query = request.query_params
        given = request.headers.get("last-event-id") or query.get("after")
        after = after_of(given, logs.of(stream))
        kinds = kinds_of(query.get("kinds", ""))
        lines = "application/x-ndjson" in request.headers.get("accept", "")

        media = "application/x-ndjson" if lines else "text/event-stream"
        return StreamingResponse(
            _event_stream(logs.follow(stream, after, kinds), lines),
            media_type=media,
            headers=_NOT_KEPT,
        )

    @router.get(
        "/images/{name}", **described_bytes("stream_event_image", "the moment", "image/jpeg")
    )
    async def image(stream: StreamId, name: ImageName) -> Response:
        """Return the image of an event. The event's field `image` contains the image's name."""
        feed = logs.of(stream)
        await feed.written()
        file = feed.images / name
        if not re.fullmatch(r"[0-9]{1,18}\.jpg", name) or not file.exists():
            raise NotFound(
                f"unknown image '{name[:64]}': use a name from the field `image` of an event"
            )
        return Response(await asyncio.to_thread(file.read_bytes), media_type="image/jpeg")

    return router


def _socket_routes(
    sockets: Sockets, service: Service, logs: EventLogs, tracks: Tracks
) -> APIRouter:
    """Return the WebSocket routes. The OpenAPI document omits them."""
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
            raise NotFound(
                f"there is no WebSocket at {websocket.url.path[:200]}: see docs/reference/http.md"
            )

        await sockets.serve(websocket, make)

    async def plain(request: Request) -> Response:
        sockets.refuse(call_of(request), request.headers.raw, frames(request))

    for path in ("/v1/models/{name}/stream", "/v1/models/{name}/versions/{version}/stream"):
        router.add_websocket_route(path, stream)
        router.add_route(path, plain, include_in_schema=False)
    router.add_websocket_route("/v1/streams/{stream}/events", follow)
    router.add_websocket_route("/{path:path}", nowhere)
    return router


async def _event_stream(
    followed: AsyncIterator[Sequence[LoggedEvent]], lines: bool
) -> AsyncIterator[bytes]:
    """Yield events as lines of JSON, or as server-sent events with comments between them."""
    quiet = 0
    yield b"" if lines else b": events\n\n"
    async for events in followed:
        quiet = 0 if events else quiet + 1
        if events:
            yield b"".join(_event_text(each, lines) for each in events)
        elif quiet % _COMMENT_LOOKS == _COMMENT_LOOKS - 1 and not lines:
            yield b":\n\n"


def _event_text(event: LoggedEvent, lines: bool) -> bytes:
    if lines:
        return event.text + b"\n"
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, kind_of(event).encode(), event.text)


def _check_may_change(request: Request, model: str) -> None:
    """Raise Restricted or Forbidden if the client may not change streams of a model."""
    call_of(request).model = model
    check_control(request, "model-repository")


def _json_answer(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _version(text: str) -> int:
    if re.fullmatch(VERSION_PATTERN, text) is None:
        raise NotFound(f"there is no version '{text[:60]}': versions are whole numbers from 1 up")
    return int(text)
