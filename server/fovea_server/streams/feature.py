"""Cameras and videos that the server follows by itself, and WebSockets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.service import Service
from fovea_server.feature import Feature
from fovea_server.observability.family import Family
from fovea_server.streams.cameras.table import StreamTable
from fovea_server.streams.events.following import EventLogs
from fovea_server.streams.sockets.socket import Sockets
from fovea_server.tracking.tracks import Tracks
from fovea_server.traffic.call import CALL

if TYPE_CHECKING:
    from fastapi import APIRouter


class Streams(Feature):
    """The streams of a server, their events, and its WebSockets."""

    def __init__(self, service: Service, tracks: Tracks) -> None:
        self._tracks, self._models = tracks, service.models
        self._table = StreamTable(service, tracks.forget)
        self._logs = EventLogs(self._table.feed, self._ending)
        self._service, self._sockets = service, Sockets(service)

    def router(self) -> APIRouter:
        """Make the routes of the streams, and of WebSockets."""
        from fastapi import APIRouter

        from fovea_server.streams.routes import stream_routes
        from fovea_server.streams.sockets.routes import socket_routes

        router = APIRouter()
        router.include_router(stream_routes(self._table, self._logs))
        router.include_router(socket_routes(self._sockets, self._service, self._logs, self._tracks))
        return router

    async def start(self) -> None:
        """Begin the streams."""
        await self._table.start()

    async def stop(self) -> None:
        """End the streams."""
        await self._table.stop()

    def families(self) -> Iterable[Family]:
        """Return the metrics of streams."""
        return chain(self._tracks.families(), self._table.families(), self._sockets.families())

    def _ending(self, stream: str) -> bool:
        """Return True once an answer about a stream must end: its key, or the server, is going."""
        call = CALL.get()
        if call is not None and call.again is not None:
            try:
                call.principal = call.again()
                self._table.get(stream)
            except FoveaError:
                return True
        return self._models.draining
