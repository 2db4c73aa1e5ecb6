"""Everything that `fovea serve` answers over HTTP, as one ASGI application."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from fovea_server.dataplane.service import Service
from fovea_server.http.cors import Cors
from fovea_server.http.v1.app import create_app
from fovea_server.http.v2.asgi import V2App
from fovea_server.http.v2.front import V2Front
from fovea_server.traffic.asgi import WithTraffic

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Surface:
    """The routes of /v1, of the page and of the documentation, and beside them the v2 protocol."""

    def __init__(self, service: Service) -> None:
        self._front = V2Front(service)
        self._v2 = V2App(self._front)
        self._app = create_app(service)
        app = Cors(service.settings.cors_origin).around(self._app)
        self._others = WithTraffic(app, service.traffic)

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Make the context in which requests may be asked, where no ASGI server is around."""
        return self._app.router.lifespan_context(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""
        if scope["type"] == "http" and self._front.takes(
            scope["method"], scope["path"].encode("latin-1", "replace"), scope["headers"]
        ):
            await self._v2(scope, receive, send)
        else:
            await self._others(scope, receive, send)
