"""The page at `/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fovea_server.feature import Feature

if TYPE_CHECKING:
    from fastapi import APIRouter


class Page(Feature):
    """Routes of the page, of its files, and of the client's wheel."""

    def router(self) -> APIRouter:
        """Make the routes."""
        from fastapi import APIRouter

        from fovea_server.ui.routes import page_routes

        return APIRouter(routes=page_routes())
