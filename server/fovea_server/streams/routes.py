"""Routes of streams: /v1/streams."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request, Response

from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.route import answered, call_of, check_control, parsed, restricted
from fovea_server.streams.cameras.picture_routes import picture_routes
from fovea_server.streams.cameras.table import StreamTable, model_in
from fovea_server.streams.documents import (
    Removed,
    StreamChange,
    StreamId,
    StreamList,
    StreamSettings,
    StreamStatus,
    described_stream,
)
from fovea_server.streams.events.following import EventLogs
from fovea_server.streams.events.routes import event_routes

_INDEX = [restricted("metadata"), restricted("model-repository")]


def stream_routes(table: StreamTable, logs: EventLogs) -> APIRouter:
    """Make the routes; those that change a stream are for who may change models."""
    router = APIRouter(tags=["streams"], prefix="/v1/streams")

    def one(name: str, status: int = 200) -> Response:
        return _json(table.document(name), status)

    @router.get("", dependencies=_INDEX, **described_stream("list_streams", StreamList))
    async def list_streams() -> Response:
        """List the streams: their settings, states, ages and counts."""
        return _json({"streams": table.documents()})

    @router.get(
        "/{stream}", dependencies=_INDEX, **described_stream("get_stream", StreamStatus, 404)
    )
    async def get_stream(stream: StreamId) -> Response:
        """Describe one stream."""
        return one(stream)

    @router.post(
        "",
        dependencies=_INDEX,
        **described_stream(
            "add_stream", StreamStatus, 400, 404, 409, 413, 422, body=StreamSettings, status=201
        ),
    )
    async def add_stream(request: Request) -> Response:
        """Begin a stream, which the server keeps over restarts."""

        async def work(body: bytes) -> Response:
            given = await parsed(request, body, json_object)
            _check(request, model_in(given))
            name = given.pop("id", None)
            if not isinstance(name, str):
                raise InvalidRequest("a stream needs an id, a text")
            call_of(request).control += f" {name[:64]!r}"
            await table.add(name, given)
            return one(name, 201)

        return await answered(request, work, None)

    @router.patch(
        "/{stream}",
        dependencies=_INDEX,
        **described_stream(
            "change_stream", StreamStatus, 400, 404, 409, 413, 422, body=StreamChange
        ),
    )
    async def change_stream(request: Request, stream: StreamId) -> Response:
        """Begin a stream again with other settings: its counts and ids, too."""
        model = table.model_of(stream)
        _check(request, model)

        async def work(body: bytes) -> Response:
            given = await parsed(request, body, json_object)
            _check(request, model_in(given) or model)
            await table.change(stream, given)
            return one(stream)

        return await answered(request, work, None)

    @router.delete(
        "/{stream}", dependencies=_INDEX, **described_stream("remove_stream", Removed, 404, 409)
    )
    async def remove_stream(request: Request, stream: StreamId) -> Response:
        """End a stream, and forget its events."""
        _check(request, table.model_of(stream))
        await table.remove(stream)
        return _json({})

    router.include_router(picture_routes(table, logs.ending))
    router.include_router(event_routes(logs))
    return router


def _check(request: Request, model: str) -> None:
    """Raise Restricted or Forbidden if a client may not change streams of a model."""
    call_of(request).model = model
    check_control(request, "model-repository")


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
