"""The routes of the protocol. Source: the regular expressions of Triton's http_server.cc."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from fovea_server.http.messages import JSON, TEXT, Endpoint
from fovea_server.http.v2.endpoints import extensions, generate, infer, models

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"
_CONTROL = _REPOSITORY + r"/models/(?P<model>[^/]+)"
_MEMORY = r"/v2/(?P<memory>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the protocol."""

    path: str
    """Pattern."""
    api: str
    """Name of its API in restrictions."""
    methods: tuple[str, ...]
    endpoint: Endpoint
    refusal: bytes = JSON
    """Content type of the answer to another method."""


# The first that matches a path is used.
_ROUTES = (
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
    Route(_MODEL + "/trace/setting", "trace", ("GET", "POST"), extensions.trace),
    Route("/v2/trace/setting", "trace", ("GET", "POST"), extensions.trace),
    Route("/v2/logging", "logging", ("GET", "POST"), extensions.log),
    Route(_REPOSITORY + "/index", "model-repository", ("POST",), models.index),
    Route(_CONTROL + "/load", "model-repository", ("POST",), models.load),
    Route(_CONTROL + "/unload", "model-repository", ("POST",), models.unload),
    Route(_MEMORY + "/status", "shared-memory", ("GET",), extensions.status),
    Route(_MEMORY + "/register", "shared-memory", ("POST",), extensions.register),
    Route(_MEMORY + "/unregister", "shared-memory", ("POST",), extensions.unregister),
)
_PATTERNS = [(re.compile(route.path), route) for route in _ROUTES]
_NAMES = dict.fromkeys(("model", "version", "region", "repository", "memory"))


@lru_cache(maxsize=256)
def resolve(path: str) -> tuple[Route, dict[str, str | None]] | None:
    """Find the route of a quoted path, and the unquoted names in it; None if there is none."""
    for pattern, route in _PATTERNS:
        if found := pattern.fullmatch(path):
            given = {name: unquote(text) for name, text in found.groupdict().items() if text}
            return route, _NAMES | given
    return None
