"""The routes of the v2 protocol and its extensions.

Source: the regular expressions of Triton's http_server.cc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from fovea_preprocess.errors import BodyTooLarge, FoveaError, Restricted
from fovea_server.http.fast_routes import FastRoute
from fovea_server.http.messages import JSON, TEXT, Endpoint, Request, Response, allow
from fovea_server.http.v2 import extensions, generate, infer, models
from fovea_server.http.v2.answers import error_answer, refusal, too_large

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"
_CONTROL = _REPOSITORY + r"/models/(?P<model>[^/]+)"


class V2Route(FastRoute):
    """Answers requests of the v2 protocol."""

    keeps_refused = True

    def takes(self, method: str, target: str) -> bool:
        """Return whether a path belongs to the v2 protocol."""
        return target.startswith("/v2")

    def route(self, request: Request) -> None:
        """Set the endpoint of a request. If the request is rejected, set its response."""
        found = resolve(request.call.path.partition("?")[0])
        if found is None:
            request.answer = refusal(404, "Not Found")
            return
        (route, names), call = found, request.call
        method = call.method
        is_allowed = method in route.methods or (method == "HEAD" and "GET" in route.methods)
        if is_allowed:
            request.endpoint, request.names = route.endpoint, names
            call.model = names["model"] or ""
        operation = f"{method} /v2/models/{{model}}/{route.path.rpartition('/')[2]}"
        try:
            self.service.authenticator.admit(
                call,
                route.api,
                operation=operation if is_allowed and route.api == "inference" else "",
                control=f"POST {call.shown!r}" if route.controls and method == "POST" else "",
            )
        except Restricted as error:
            if self.service.authenticator.http.missing(route.api, call.header) is None:
                raise
            request.answer = refusal(403, str(error))
            return
        if not is_allowed:
            is_options = method == "OPTIONS" and "GET" in route.methods
            answer = Response() if is_options else refusal(405, "Method Not Allowed", route.refusal)
            answer.headers.append((b"allow", allow(route.methods).encode()))
            request.answer = answer

    def error_answer(self, error: FoveaError) -> Response:
        """Return the response for an error, in Triton's form."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Return the error for a body that exceeds the limit, with Triton's text."""
        return too_large(size, self.service.settings.http_max_input_size)


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the protocol. A request uses the first route whose pattern matches its path."""

    path: str
    """Regular expression of the path."""
    api: str
    """Name of the API to which the route belongs, for `--http-restricted-api`."""
    methods: tuple[str, ...]
    endpoint: Endpoint
    refusal: bytes = JSON
    """Content type of the response to an HTTP method that the route does not allow."""
    controls: bool = False
    """True if POST changes the server."""


_MEMORY = r"/v2/(?P<memory>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?"
_BOTH = ("GET", "POST")

ROUTES = (
    Route(_MODEL + "/infer", "inference", ("POST",), infer.infer, TEXT),
    Route("/v2/health/live", "health", ("GET",), models.live, TEXT),
    Route("/v2/health/ready", "health", ("GET",), models.ready, TEXT),
    Route(_MODEL + "/ready", "health", ("GET",), models.model_ready, TEXT),
    Route("/v2", "metadata", ("GET",), models.server),
    Route("/v2/models/stats", "statistics", ("GET",), models.statistics),
    Route(_MODEL, "metadata", ("GET",), models.model),
    Route(_MODEL + "/config", "model-config", ("GET",), models.config),
    Route(_MODEL + "/stats", "statistics", ("GET",), models.statistics),
    Route(_MODEL + "/generate", "inference", ("POST",), generate.generate),
    Route(_MODEL + "/generate_stream", "inference", ("POST",), generate.generate_stream),
    Route(_REPOSITORY + "/index", "model-repository", ("POST",), models.index),
    Route(_CONTROL + "/load", "model-repository", ("POST",), models.load, controls=True),
    Route(_CONTROL + "/unload", "model-repository", ("POST",), models.unload, controls=True),
    Route(_MODEL + "/trace/setting", "trace", _BOTH, extensions.trace, controls=True),
    Route("/v2/trace/setting", "trace", _BOTH, extensions.trace, controls=True),
    Route("/v2/logging", "logging", _BOTH, extensions.log, controls=True),
    Route(_MEMORY + "/status", "shared-memory", ("GET",), extensions.status),
    Route(_MEMORY + "/register", "shared-memory", ("POST",), extensions.register, controls=True),
    Route(
        _MEMORY + "/unregister", "shared-memory", ("POST",), extensions.unregister, controls=True
    ),
)
_PATTERNS = tuple((re.compile(route.path), route) for route in ROUTES)


@lru_cache(maxsize=256)
def resolve(path: str) -> tuple[Route, dict[str, str | None]] | None:
    """Return the route of a quoted path, and the unquoted names in the path.

    If no route matches the path, return None.
    """
    for pattern, route in _PATTERNS:
        if found := pattern.fullmatch(path):
            given = {name: unquote(text) for name, text in found.groupdict().items() if text}
            return route, dict.fromkeys(("model", "version", *pattern.groupindex)) | given
    return None
