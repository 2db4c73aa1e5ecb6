"""Everything that `fovea serve` answers over HTTP, as one ASGI application."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from fovea_server.dataplane.service import Service
from fovea_server.http.asgi import FrontApp
from fovea_server.http.cors import Cors
from fovea_server.http.v1.app import create_app
from fovea_server.http.v1.predict import PredictFront
from fovea_server.http.v1.sources import ImageSources
from fovea_server.http.v2.front import V2Front
from fovea_server.traffic.asgi import WithTraffic

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Surface:
    """The v2 protocol and predict requests, and behind them the other routes and the page.

    Attributes:
        fronts: of requests that need no ASGI.
    """

    def __init__(self, service: Service) -> None:
        sources = ImageSources(service.settings)
        self.fronts = (V2Front(service), PredictFront(service, sources))
        self._app = create_app(service, sources)
        others = Cors(service.settings.cors_origin).around(self._app)
        self._all = FrontApp(self.fronts, WithTraffic(others, service.traffic))

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Make the context in which requests may be asked, where no ASGI server is around."""
        return self._app.router.lifespan_context(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""
        await self._all(scope, receive, send)
