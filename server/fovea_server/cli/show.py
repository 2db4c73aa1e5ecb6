"""The page of `fovea watch --show`: each stream as a moving picture, for this machine alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from html import escape

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from fovea_server.streams.cameras.picture import MJPEG, NewestPicture, mjpeg
from fovea_server.streams.cameras.stream import CameraStream


def page_server(streams: Sequence[CameraStream], port: int) -> uvicorn.Server:
    """Make the server of the page; it takes no name but those of this machine."""
    drawing = asyncio.Semaphore(2)
    pictures = [NewestPicture(stream, drawing) for stream in streams]
    figures = "".join(
        f"<figure><img src='/{number}' alt=''><figcaption>{escape(one.config.address.shown)}"
        "</figcaption></figure>"
        for number, one in enumerate(streams)
    )
    style = "body{margin:1em;font:1em sans-serif}img{max-width:100%}figure{margin:0 0 1em}"
    body = f"<!doctype html><title>fovea watch</title><style>{style}</style>{figures}"

    async def page(request: Request) -> Response:
        return HTMLResponse(body)

    async def video(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(pictures):
            return Response("there is no such stream", 404)
        return StreamingResponse(mjpeg(pictures[number]), media_type=MJPEG)

    app = Starlette(
        routes=[Route("/", page), Route("/{number:int}", video)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
    )
    return uvicorn.Server(
        uvicorn.Config(app, port=port, log_config=None, ws="none", timeout_graceful_shutdown=1)
    )
