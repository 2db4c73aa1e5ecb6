"""The part of a server that serves the page at `/`; `--no-page` leaves it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fovea_server.dataplane.service import ServerPart, Service

if TYPE_CHECKING:
    from fastapi import APIRouter


class PagePart(ServerPart):
    """Routes of the page, of its files, and of the client's wheel."""

    def __init__(self, service: Service) -> None:
        self._served = service.settings.page

    def routes(self) -> APIRouter | None:
        """Make the routes."""
        if not self._served:
            return None
        from fastapi import APIRouter

        from fovea_page.routes import page_routes

        return APIRouter(routes=page_routes())
