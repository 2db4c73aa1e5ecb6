"""Routes of events: as server-sent events, or as JSON lines, and their pictures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.responses import StreamingResponse

from fovea_preprocess.errors import NotFound
from fovea_server.http.v1.route import restricted
from fovea_server.streams.documents import StreamId, described_bytes
from fovea_server.streams.events.following import EventLogs, after_of, kind_of, kinds_of
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.sockets.socket import no_socket

_COMMENT_LOOKS = 15

ImageName = Annotated[str, Path(description="name of the picture", examples=["7.jpg"])]


def event_routes(logs: EventLogs) -> APIRouter:
    """Make the routes."""
    router = APIRouter(
        tags=["streams"],
        prefix="/{stream}/events",
        dependencies=[
            restricted("metadata"),
            restricted("model-repository"),
            restricted("cameras"),
        ],
    )

    @router.get(
        "",
        **described_bytes(
            "stream_events",
            "events, each with its number; as lines of JSON where Accept says so",
            *("text/event-stream", "application/x-ndjson"),
            after="number of the last event that you have, as Last-Event-ID, or -50 for the last "
            "50; default the newest",
            kinds="of the events, with commas; default all",
        ),
    )
    async def follow(request: Request, stream: StreamId) -> Response:
        """Follow what happens: objects that appear, cross, enter, leave and are lost."""
        if "sec-websocket-key" in request.headers:
            raise no_socket()
        query = request.query_params
        given = request.headers.get("last-event-id") or query.get("after")
        after = after_of(given, logs.of(stream))
        kinds = kinds_of(query.get("kinds", ""))
        lines = "application/x-ndjson" in request.headers.get("accept", "")

        async def pieces() -> AsyncIterator[bytes]:
            quiet = 0
            yield b"" if lines else b": events\n\n"
            async for events in logs.follow(stream, after, kinds):
                quiet = 0 if events else quiet + 1
                if events:
                    yield b"".join(_written(each, lines) for each in events)
                elif quiet % _COMMENT_LOOKS == _COMMENT_LOOKS - 1 and not lines:
                    yield b":\n\n"

        media = "application/x-ndjson" if lines else "text/event-stream"
        return StreamingResponse(
            pieces(),
            media_type=media,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @router.get(
        "/images/{name}", **described_bytes("stream_event_image", "the moment", "image/jpeg")
    )
    async def image(stream: StreamId, name: ImageName) -> Response:
        """Return the picture of an event, whose `image` is its name."""
        feed = logs.of(stream)
        await feed.written()
        file = feed.images / name
        if not re.fullmatch(r"[0-9]{1,18}\.jpg", name) or not file.exists():
            raise NotFound(f"there is no picture '{name[:64]}': it is one of the event's `image`")
        return Response(await asyncio.to_thread(file.read_bytes), media_type="image/jpeg")

    return router


def _written(event: LoggedEvent, lines: bool) -> bytes:
    if lines:
        return event.text + b"\n"
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, kind_of(event).encode(), event.text)
