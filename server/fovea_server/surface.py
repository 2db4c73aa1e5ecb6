"""Everything that `fovea serve` answers over HTTP, as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING

from fovea_server.app import App
from fovea_server.http.asgi import FrontApp
from fovea_server.http.cors import Cors
from fovea_server.http.front import Front
from fovea_server.http.v1.predict import PredictFront
from fovea_server.http.v2.front import V2Front
from fovea_server.traffic.asgi import WithTraffic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Surface:
    """The v2 protocol and predict requests, and behind them the other routes and the page.

    FastAPI is imported at the first request that needs it: a server that is asked for images and
    tensors alone starts without it.

    Args:
        app: the server's objects.
        before: fronts that may take a request first.

    Attributes:
        fronts: of requests that need no ASGI.
    """

    def __init__(self, app: App, before: Sequence[Front] = ()) -> None:
        self._app, service = app, app.service
        own = V2Front(service), PredictFront(service, app.sources)
        added = chain.from_iterable(feature.fronts() for feature in app.features)
        self.fronts: tuple[Front, ...] = (*before, *own, *added)
        self._routes: ASGIApp | None = None
        self._making = asyncio.Lock()
        others = Cors(service.settings.cors_origin).around(self._others)
        self._all = FrontApp(self.fronts, WithTraffic(others, service.traffic))

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        for feature in self._app.features:
            await feature.start()
        yield
        for feature in self._app.features:
            await feature.stop()
        await self._app.sources.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""
        if scope["type"] != "lifespan":
            await self._all(scope, receive, send)
            return
        await receive()
        async with self._lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _others(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._making:
            if self._routes is None:
                self._routes = await asyncio.to_thread(self._make)
        await self._routes(scope, receive, send)

    def _make(self) -> ASGIApp:
        from fovea_server.http.v1.app import create_app

        return create_app(self._app.service, self._app.sources, self._app.features)
