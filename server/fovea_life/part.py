"""The part of a server that keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_server.dataplane.service import Service
from fovea_server.statistics.family import Family

if TYPE_CHECKING:
    from fastapi import APIRouter

    from fovea_life.capture.capturer import Capturer


class LifePart:
    """Captures, where the operator asks for them, as `dataplane.part.ServerPart` says.

    Raises:
        InvalidOption: --capture-rule is no rule.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._capture: Capturer | None = None
        if settings.capture is not None:
            # A server that keeps nothing starts without what writes results into files.
            from fovea_life.capture.capturer import Capturer
            from fovea_life.capture.rules import parse_rule
            from fovea_life.capture.store import CaptureStore

            for text in settings.capture_rule:
                parse_rule(text)
            most = int(settings.capture_max_gb * 2**30)
            store = CaptureStore(settings.capture, most, settings.capture_days)
            self._capture = Capturer(service.plane, store, settings.capture_rule)

    def routes(self) -> APIRouter:
        """Make no routes: captures are read where they lie."""
        from fastapi import APIRouter

        return APIRouter()

    def families(self) -> Iterable[Family]:
        """Return the metrics of captures."""
        return () if self._capture is None else self._capture.families()

    async def start(self) -> None:
        """Begin to keep images."""
        if self._capture is not None:
            self._capture.start()

    async def stop(self) -> None:
        """Write those that wait."""
        if self._capture is not None:
            await self._capture.stop()
