"""Runs a Fovea server inside a Ray process, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from threading import Thread

from fovea_preprocess.errors import ModelNotReady, Unavailable
from fovea_server.app import build_app
from fovea_server.dataplane.service import Service
from fovea_server.logs import set_up_logging
from fovea_server.serve import Server
from fovea_server.settings import Settings

_LOOK_S = 0.02


class LoadedModels:
    """Some models of a repository and their service. The constructor tries to load each model."""

    def __init__(
        self, settings: Settings, names: Sequence[str], *, described: bool = False
    ) -> None:
        set_up_logging(
            settings.log_level, verbose=settings.log_verbose, line_format=settings.log_format
        )
        self.app = build_app(settings, only=names, described=described)
        self.models, self.service = self.app.registry, self.app.service
        self.models.start()
        while not self.models.started:
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise ModelNotReady if a model could not be loaded or has failed since."""
        if failed := self.models.unserved:
            raise ModelNotReady("; ".join(failed))

    def close(self) -> None:
        """Unload the models, unless a server has already unloaded them at its exit."""
        self.app.close()


class ServerThread:
    """A running server. Call its methods from another thread, because they block.

    Args:
        server: server to run.
        service: service that answers the requests.
        listener: bound socket for HTTP.
        close: function that is called on the event loop after the server has ended.

    Attributes:
        loop: event loop of the server.

    Raises:
        Exception: the server failed to start with this error.
    """

    def __init__(
        self,
        server: Server,
        service: Service,
        listener: socket.socket,
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._runner = asyncio.Runner(loop_factory=server.config.get_loop_factory())
        self.loop = self._runner.get_loop()
        self._server, self._service, self._close = server, service, close
        self._ended: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(listener,), name="serve", daemon=True)
        self._thread.start()
        while not server.started:
            if self._ended.done():
                self._ended.result()
            time.sleep(_LOOK_S)

    def _run(self, listener: socket.socket) -> None:
        try:
            with self._runner:
                self._runner.run(self._serve(listener))
        except BaseException as error:  # noqa: BLE001  (the constructor or `check` raises it)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await self._server.serve([listener])
        finally:
            if self._close is not None:
                await self._close()

    def check(self) -> None:
        """Raise the error that ended the server."""
        if self._ended.done():
            self._ended.result()
            raise Unavailable("the server stopped")

    def stop(self, still_s: float = 0.0) -> None:
        """Accept no new connections, answer the requests on open connections, and stop.

        Args:
            still_s: time in seconds for which the server still answers. Each response in this time
                requests that the client closes its connection.
        """
        if self._ended.done():
            return
        self.loop.call_soon_threadsafe(self._leave)
        time.sleep(still_s)
        self._server.should_exit = True
        self._thread.join()

    def _leave(self) -> None:
        for listening in self._server.servers:
            listening.close()
        self._service.models.drain()
