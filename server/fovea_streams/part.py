"""The part of a server that knows streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.service import ServerPart, Service
from fovea_server.http.front import Front
from fovea_server.statistics.family import Family
from fovea_server.traffic.call import CALL
from fovea_streams.events.following import EventLogs
from fovea_streams.sockets.front import SocketFront
from fovea_streams.streams.table import StreamTable
from fovea_streams.tracking.tracks import Tracks

if TYPE_CHECKING:
    from fastapi import APIRouter


class StreamsPart(ServerPart):
    """Track ids for requests of any transport, and streams."""

    def __init__(self, service: Service) -> None:
        self._tracks = Tracks(service.settings.track_idle_s)
        service.plane.turn_of = self._tracks.turn_of
        self._plane = service.plane
        self._table = StreamTable(service, self._tracks.forget)
        self._logs = EventLogs(self._table.feed, self._ending)
        self._sockets = SocketFront(service, self._logs, self._tracks.forget)

    def routes(self) -> APIRouter:
        """Make the routes of the streams."""
        from fovea_streams.routes import stream_routes

        return stream_routes(self._table, self._logs)

    def fronts(self) -> Sequence[Front]:
        """Return what takes WebSockets."""
        return (self._sockets,)

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
                call.holder = call.again()
                self._table.get(stream)
            except FoveaError:
                return True
        return self._plane.draining
