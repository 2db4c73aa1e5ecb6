"""The route that returns what a client's key allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fovea_server.feature import Feature

if TYPE_CHECKING:
    from fastapi import APIRouter


class KeyRoute(Feature):
    """The route of keys."""

    def router(self) -> APIRouter:
        """Make the route."""
        from fovea_server.http.v1.keys import router

        return router
