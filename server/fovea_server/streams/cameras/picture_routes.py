"""Routes of the pictures of a stream: the newest one, and all from now on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Response
from starlette.responses import StreamingResponse

from fovea_preprocess.errors import NotFound
from fovea_server.http.v1.route import restricted
from fovea_server.streams.cameras.picture import MJPEG, mjpeg
from fovea_server.streams.cameras.table import StreamTable
from fovea_server.streams.documents import StreamId, described_bytes

_FIRST_S, _LOOK_S = 5.0, 0.1
_NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def picture_routes(table: StreamTable, ending: Callable[[str], bool]) -> APIRouter:
    """Make the routes, as `fovea_server.streams.routes.stream_routes`."""
    router = APIRouter(
        tags=["streams"],
        prefix="/{stream}",
        dependencies=[
            restricted("metadata"),
            restricted("model-repository"),
            restricted("cameras"),
        ],
    )

    @router.get("/image", **described_bytes("stream_image", "the newest frame", "image/jpeg"))
    async def image(stream: StreamId) -> Response:
        """Draw the newest frame, with ids, trails, lines and zones; 404 says why there is none."""
        picture, camera = table.picture(stream), table.get(stream)
        until = asyncio.get_running_loop().time() + _FIRST_S
        while (jpeg := await picture.jpeg()) is None:
            if camera.over or asyncio.get_running_loop().time() > until:
                state, reason = camera.state
                because = f"{state}: {reason}" if reason else state
                raise NotFound(f"stream {stream} has no picture yet, as it is {because}")
            await asyncio.sleep(_LOOK_S)
        return Response(jpeg, headers=_NOT_KEPT, media_type="image/jpeg")

    # Generators of clients refuse a document with its media type.
    @router.get("/video", include_in_schema=False)
    async def video(stream: StreamId) -> Response:
        """Send the pictures, up to five a second, until the stream ends or is changed."""
        parts = mjpeg(table.picture(stream), partial(ending, stream))
        return StreamingResponse(parts, headers=_NOT_KEPT, media_type=MJPEG)

    return router
