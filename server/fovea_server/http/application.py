"""Creates the ASGI application of a server, which handles all HTTP requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import fastapi_offline
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Mount

from fovea_preprocess.errors import (
    FoveaError,
    InvalidOption,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
)
from fovea_preprocess.mistakes import key_fault
from fovea_server.error_status import http_status
from fovea_server.http.call_middleware import CallMiddleware
from fovea_server.http.fast_routes import FastRoute, FastRoutes
from fovea_server.http.guard import Guard, GuardedApp
from fovea_server.http.messages import allow
from fovea_server.http.receive import ClientLeft
from fovea_server.http.v1 import models, predict
from fovea_server.http.v1.answers import error_answer, error_json
from fovea_server.http.v1.openapi import docs_page, document_route
from fovea_server.http.v1.predict import PredictRoute
from fovea_server.http.v2.answers import error_answer as v2_error_answer
from fovea_server.http.v2.routes import V2Route

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fovea_server.app import App

WriteError = Callable[[FoveaError], bytes]

# Response headers that browsers show to pages of other origins; browsers hide all other headers.
_EXPOSED = ("Inference-Header-Content-Length", "Retry-After", "X-Request-Id")
_SCRIPTS = "/static-offline-docs"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def create_application(app: App, before: Sequence[FastRoute] = ()) -> ASGIApp:
    """Create the ASGI application. Requests are passed to the routes in `before` first."""
    service = app.service
    plain = *before, V2Route(service), PredictRoute(service, app.sources)
    guard = Guard(service, service.settings.http_address)
    made: ASGIApp = GuardedApp(FastRoutes(plain, create_api(app)), guard, _foreign)
    if origins := service.settings.cors_origin:
        # The CORS middleware comes before the check of keys, because browsers send preflight
        # requests without a key.
        made = CORSMiddleware(
            made,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
    return CallMiddleware(made, service.traffic)


def create_api(app: App) -> FastAPI:
    """Create the FastAPI routes and the OpenAPI document.

    The document also describes the predict routes.
    """
    service = app.service

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # The exit stack stops features in reverse order, so each feature stops before the features
        # that it uses. If one feature fails to start, the features that are already started are
        # stopped.
        async with AsyncExitStack() as started:
            started.push_async_callback(app.sources.close)
            for feature in app.features:
                await feature.start()
                started.push_async_callback(feature.stop)
            yield

    # The documentation page loads its scripts from this server, because many servers cannot reach a
    # CDN.
    made = FastAPI(
        title="Fovea",
        summary="Image in, boxes out.",
        description=(
            "Send an image as the body: `curl --data-binary @bus.jpg "
            "http://127.0.0.1:8000/v1/models/yolov8n/predict`. The route also accepts forms and "
            "JSON (Content-Type), and returns drawn images (Accept). In `/openapi.json`, from "
            "which clients are generated, each of these is a separate operation.\n\nThe [v2 "
            "protocol](https://github.com/kserve/open-inference-protocol) with [Triton's "
            "extensions](https://github.com/triton-inference-server/server/tree/main/docs/protocol)"
            " is served at `/v2`."
        ),
        version=version("fovea-serve"),
        openapi_tags=[
            {"name": "predict", "description": "Images in, boxes out."},
            {"name": "models", "description": "The models that are served, and their statistics."},
            {"name": "keys", "description": "What the key of a request allows."},
            {"name": "health", "description": "For probes and load balancers."},
        ],
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    made.state.service = service
    made.state.sources = app.sources
    for router in (predict.router, models.router, models.health):
        made.include_router(router)
    made.mount(_SCRIPTS, StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static"))
    made.add_route("/docs", docs_page(_SCRIPTS), include_in_schema=False)
    made.add_route("/openapi.json", document_route(made), include_in_schema=False)
    # Add the routes of features last. If a feature uses the path of a route above, the route above
    # is used.
    for feature in app.features:
        if (added := feature.router()) is not None:
            made.include_router(added)
    # Add this route after the web UI, because both use the path /. Browsers get the web UI there.
    made.add_route("/", models.identity, include_in_schema=False)
    made.add_middleware(HeadAndOptions, routes=made.router.routes)
    made.add_exception_handler(FoveaError, _on_error)
    made.add_exception_handler(HTTPException, _on_http_exception)
    made.add_exception_handler(RequestValidationError, _on_validation_error)
    made.add_exception_handler(ClientLeft, _on_disconnect)
    made.add_exception_handler(Exception, _on_fault)
    return made


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FoveaError)
    # Remove the error's stack frames, because they would keep the body in memory until the next
    # garbage collection.
    error.__traceback__ = error.__context__ = None
    request.state.error = error
    answer = error_answer(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    body = _error_body(request, error)
    if not getattr(request.state, "body_read", False):
        # Close the connection, because the rest of the body is still arriving and will not be read.
        headers["Connection"] = "close"
    return _json(body, answer.status, headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if request.method != "GET":
        headers["Connection"] = "close"
    message = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code == 405:
        routes = request.app.router.routes
        headers["Allow"] = allow(_methods_at(routes, request.scope))
        advice = f"send {headers['Allow']}"
        predict_path = f"{request.url.path.rstrip('/')}/predict"
        if _takes(routes, {**request.scope, "root_path": "", "path": predict_path}):
            advice += f"; send images to POST {predict_path}"
        refused: FoveaError = MethodNotAllowed(f"{message}; {advice}")
    else:
        kind = NotFound if error.status_code == 404 else InvalidRequest
        refused = kind(f"{message}; see /docs for the routes")
    return _json(error_json(refused), error.status_code, headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # FastAPI validates only the version and the query of a request here.
    first = error.errors()[0]
    kind, name = first["loc"][:2]
    version = str(first["input"])[:60]
    refused: FoveaError = NotFound(
        f"there is no version '{version}': versions are whole numbers from 1 up"
    )
    if kind == "query":
        refused = InvalidOption(key_fault(first, [name]))
    return _json(error_json(refused), http_status(refused), {})


async def _on_fault(request: Request, error: Exception) -> Response:
    # The response has no details. The traceback is only in the log.
    fault = FoveaError("an internal error; the server's log has the details")
    return _json(_error_body(request, fault), 500, {"Connection": "close"})


def _foreign(error: FoveaError, path: str) -> Response:
    # Close the connection, because the rest of the body is still arriving and will not be read.
    if path.startswith("/v2"):
        answer = v2_error_answer(error)
        return _json(b"".join(answer.body), answer.status, {"Connection": "close"})
    return _json(error_json(error), http_status(error), {"Connection": "close"})


def _error_body(request: Request, error: FoveaError) -> bytes:
    """Return an error in the form of the API that the request used."""
    write: WriteError = getattr(request.state, "write_error", error_json)
    return write(error)


def _json(body: bytes, status: int, headers: Mapping[str, str]) -> Response:
    return Response(body, status, headers, "application/json")


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # The client has disconnected, so only the access log contains this status. 499 is nginx's
    # status for such requests.
    return Response(status_code=499)


def _methods_at(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods that have a route at the path of a request."""
    # Set the root path, because a mount changes it in the requests that it handles.
    at = {**scope, "root_path": ""}
    return [method for method in _METHODS if _takes(routes, {**at, "method": method})]


def _takes(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    # A mount has no list of methods. Mounts here contain only static files, so the method is GET.
    return any(
        route.matches(scope)[0] is Match.FULL
        and (scope["method"] == "GET" or not isinstance(route, Mount))
        for route in routes
    )


class HeadAndOptions:
    """Middleware that answers OPTIONS requests, and runs HEAD requests like GET.

    The HTTP server omits the body of a response to HEAD.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI specifies."""
        method = scope.get("method")
        if method in ("HEAD", "OPTIONS"):
            methods = _methods_at(self._routes, scope)
            if "GET" in methods and method == "OPTIONS":
                await Response(headers={"Allow": allow(methods)})(scope, receive, send)
                return
            if "GET" in methods:
                scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
