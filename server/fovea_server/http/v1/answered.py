"""Answers a request with a body within the limits and deadlines of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.service import Service
from fovea_server.http.receive import in_time, stopped, unless_client_leaves
from fovea_server.http.v1.body import Source, read_body
from fovea_server.http.v1.models import call_of
from fovea_server.http.v1.sources import ImageSources

Work = Callable[[bytes], Coroutine[Any, Any, Response]]


async def answered(request: Request, work: Work, timeout_s: float | None) -> Response:
    """Receive the body of a request, and await the answer that `work` makes of it.

    The bytes count as held until then, and so do those that the work gives to `request.state.hold`.
    It stops when the client leaves, or `timeout_s` after its head came. Raises as `read_body`.
    """
    service: Service = request.app.state.service

    async def received() -> Response:
        with service.budget.body() as hold:
            request.state.hold = hold
            body = await read_body(request, hold, service.settings)
            return await unless_client_leaves(request.receive, work(body))

    try:
        return await in_time(received(), timeout_s, call_of(request).began)
    except asyncio.CancelledError:
        raise stopped() from None


async def fetched(
    request: Request, sources: Sequence[Source]
) -> list[bytes | bytearray | FoveaError]:
    """Replace the addresses among the sources of a request that is being answered by images."""
    fetching: ImageSources = request.app.state.sources
    return await fetching.fetched(sources, request.state.hold)
