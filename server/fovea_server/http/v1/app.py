"""The composition root: settings in, an ASGI application out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fovea_preprocess.errors import (
    FoveaError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    QueueFull,
)
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.http.allow import allow
from fovea_server.http.v1 import health, models, predict
from fovea_server.http.v1.answer import error_json
from fovea_server.http.v1.methods import HeadAndOptions, methods_at
from fovea_server.http.v1.openapi import document
from fovea_server.status import http_status


def create_app(service: Service, budget: ByteBudget) -> FastAPI:
    """Everything over HTTP that is not Triton's protocol.

    Args:
        service: answers.
        budget: counts bodies.
    """
    # Its documentation page brings its own scripts: machines that serve often see no CDN.
    app = FastAPIOffline(
        title="Fovea",
        summary="Image in, boxes out.",
        description=(
            "Send an image as the body: `curl --data-binary @bus.jpg "
            "http://127.0.0.1:8000/v1/models/yolov8n/predict`. Clients can be generated from "
            "`/openapi.json`; one of openapi-generator sends an image with "
            "`_content_type='application/octet-stream'`.\n\n"
            "Triton's v2 protocol is served beside it, at `/v2`: see the protocol's own "
            "documentation."
        ),
        version="1",
        openapi_tags=[
            {"name": "predict", "description": "Images in, boxes out."},
            {"name": "models", "description": "The models that are served, and their statistics."},
            {"name": "health", "description": "For probes and load balancers."},
        ],
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.service = service
    app.state.fetcher = None
    app.state.budget = budget
    app.state.drawing = asyncio.Semaphore(2)
    for part in (predict, models, health):
        app.include_router(part.router)
    # FastAPI asks for it by this name, when the document is wanted for the first time.
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    app.add_api_route("/", _to_docs, include_in_schema=False)
    app.add_middleware(HeadAndOptions, routes=app.router.routes)
    app.add_exception_handler(FoveaError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_fault)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings = app.state.service.settings
    if settings.allow_url:
        # Here, because httpx costs a tenth of a second that most servers need not pay.
        from fovea_server.http.v1.fetch import Fetcher

        app.state.fetcher = Fetcher(
            max_bytes=settings.max_image_bytes,
            timeout_s=settings.url_timeout_s,
            allow_private=settings.url_allow_private,
        )
    yield
    if app.state.fetcher is not None:
        await app.state.fetcher.close()


async def _to_docs() -> Response:
    return RedirectResponse("/docs")


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FoveaError)
    request.state.error = error
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if not getattr(request.state, "body_read", False):
        # What is still under way of the body will not be read.
        headers["Connection"] = "close"
    return JSONResponse(error_json(error), status_code=http_status(error), headers=headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and not request.url.path.startswith("/v1"):
        # What is nobody's is answered as Triton does.
        plain = {"Content-Type": "text/plain"}
        return JSONResponse({"error": "Not Found"}, status_code=404, headers=plain)
    headers = {**(error.headers or {}), "Connection": "close"}
    message = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code == 405:
        headers["Allow"] = allow(methods_at(request.app.router.routes, request.scope))
        told: FoveaError = MethodNotAllowed(f"{message}; send {headers['Allow']}")
    else:
        kind = NotFound if error.status_code == 404 else InvalidRequest
        told = kind(f"{message}; see /docs for the routes")
    return JSONResponse(error_json(told), status_code=error.status_code, headers=headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # A version is all that the routes leave to FastAPI to read.
    version = str(error.errors()[0]["input"])[:60]
    told = NotFound(f"there is no version '{version}': versions are whole numbers from 1 up")
    return JSONResponse(error_json(told), status_code=http_status(told))


async def _on_fault(request: Request, error: Exception) -> Response:
    # The server's log has the traceback; it is nobody else's business.
    fault = FoveaError("an internal error; the server's log has the details")
    return JSONResponse(error_json(fault), status_code=500, headers={"Connection": "close"})


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # Nobody reads this; 499 is what proxies log for a client that went away.
    return Response(status_code=499)
