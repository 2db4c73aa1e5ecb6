"""Compares what annexes give for the names of `fovea.abilities` with what the core calls.

Only mypy reads it: an entry point is Any to it, so no call in the core shows it an annex that has
other arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fovea_connection.protocol import ServerProtocol
from fovea_drawing.drawing import annotated
from fovea_engines.detect.drawing import Annotate
from fovea_extensions.extensions import Extensions
from fovea_extensions.grpc_calls import METHODS
from fovea_extensions.http_endpoints import ROUTES
from fovea_outbound.fetch import Fetcher
from fovea_outbound.tracing import tracer
from fovea_server.dataplane.service import MakeExtensions
from fovea_server.grpc.methods import Method
from fovea_server.http.v1.sources import MakeFetcher
from fovea_server.http.v2.routes import Route
from fovea_server.traffic.spans import Tracer

CONNECTION: Callable[..., asyncio.Protocol] = ServerProtocol
DRAWING: Annotate = annotated
EXTENSIONS: MakeExtensions = Extensions
FETCHER: MakeFetcher = Fetcher
GRPC_METHODS: Mapping[str, Method] = METHODS
TRACER: Callable[[float], Tracer] = tracer
V2_ROUTES: tuple[Route, ...] = ROUTES
