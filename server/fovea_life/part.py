"""The part of a server that keeps what it gets, and compares it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from fovea_life.drift.watch import DriftWatch
from fovea_life.promotion.promoter import Promoter
from fovea_life.shadow.shadows import Shadows
from fovea_server.dataplane.service import ServerPart, Service
from fovea_server.statistics.family import Family

if TYPE_CHECKING:
    from fastapi import APIRouter

    from fovea_life.capture.capturer import Capturer


class LifePart(ServerPart):
    """Captures where the operator asks for them, drift, shadows, promotions.

    Raises:
        InvalidOption: --capture-rule is no rule.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self.shadows = Shadows(service.plane, settings)
        self._promoter = Promoter(service.plane, self.shadows)
        self._drift = DriftWatch(service.plane)
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
        """Make the routes of drift, shadows and promotions; captures are read where they lie."""
        from fastapi import APIRouter

        from fovea_life.drift.routes import drift_routes
        from fovea_life.promotion.routes import promotion_routes
        from fovea_life.shadow.routes import shadow_routes

        router = APIRouter()
        router.include_router(drift_routes(self._drift))
        router.include_router(promotion_routes(self._promoter))
        router.include_router(shadow_routes(self.shadows))
        return router

    def families(self) -> Iterable[Family]:
        """Return the metrics."""
        captures = () if self._capture is None else self._capture.families()
        return chain(captures, self._drift.families(), self.shadows.families())

    async def start(self) -> None:
        """Begin to keep and compare images, and to follow histories."""
        self._promoter.start()
        self._drift.start()
        if self._capture is not None:
            self._capture.start()

    async def stop(self) -> None:
        """Stop the candidates, and write the captures that wait."""
        await self._promoter.stop()
        self._drift.stop()
        await self.shadows.stop()
        if self._capture is not None:
            await self._capture.stop()
