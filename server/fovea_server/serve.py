"""Runs the servers of all protocols: start, signals, exit."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, cast

import uvicorn

from fovea_preprocess.errors import FoveaError
from fovea_server.app import App
from fovea_server.byte_budget import Trimmer
from fovea_server.dataplane.service import Service
from fovea_server.http.application import create_application
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.fast_routes import FastRoute
from fovea_server.listen import HTTP_SHARE, share_of_descriptors
from fovea_server.logs import SERVER_LOG
from fovea_server.settings import silence_grpc
from fovea_server.streams.sockets.socket import SocketLimits
from fovea_server.tls import https_files

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from fovea_server.grpc.server import GrpcServer
    from fovea_server.metrics.listener import MetricsServer

log = logging.getLogger(__name__)

# Clients reuse connections; one that is closed as a request is sent is an error for them.
KEEP_ALIVE_S = 75
# uvicorn looks after its server so often.
_TICKS_OF_A_SECOND = 10
# Time between two looks at a second Ctrl-C.
_LOOK_S = 0.1


class _Descriptors:
    """Says when the process runs out of file descriptors.

    The event loop then closes new connections without a word.
    """

    def __init__(self) -> None:
        self._out = False

    def look(self) -> None:
        """Log that there is none left, or that there is one again."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if not self._out and error.errno in (errno.EMFILE, errno.ENFILE):
                self._out = True
                log.error(
                    "no file descriptor is left (%s; this process may have %d), and new "
                    "connections are closed: raise the limit (ulimit -n), or find the client that "
                    "holds connections",
                    error.strerror,
                    resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                )
            return
        if self._out:
            self._out = False
            log.warning("there are file descriptors again")


class Server(uvicorn.Server):
    """uvicorn's server, which also starts and stops the others, and closes the service."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        others: list[GrpcServer | MetricsServer],
        signalled: Callable[[], None],
        trimmer: Trimmer,
    ) -> None:
        super().__init__(config)
        self._trimmer = trimmer
        self._signalled = signalled
        self._descriptors = _Descriptors()
        self._service = service
        self._others = others
        self._drained_at: float | None = None
        """On the monotonic clock, once it drains."""
        self._reload_requested = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start all servers; Unavailable: another server cannot listen."""
        try:
            for other in self._others:
                await other.start()
        except FoveaError:
            await self._stop_others(0)
            raise
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            near = f"[{near}]" if ":" in near else near
            what = "" if self._service.settings.page else "docs"
            log.info(
                "%s on %s port %d; open %s://%s:%d/%s in a browser to %s",
                scheme.upper(),
                host,
                port,
                scheme,
                near,
                port,
                what,
                "read its documentation" if what else "try the models",
            )
        if "*" in self._service.settings.cors_origin:
            log.warning("--cors-origin is *: pages of every site may use this server")

    async def on_tick(self, counter: int) -> bool:
        """Return True when it is time to stop: `drain_secs` after the signal."""
        self._trimmer.look()
        if self._reload_requested:
            self._reload_requested = False
            self._reload()
        if not counter % _TICKS_OF_A_SECOND:
            self._descriptors.look()
        if not await super().on_tick(counter):
            return False
        if self._drained_at is None:
            seconds = self._service.settings.drain_secs
            self._drained_at = time.monotonic() + seconds
            self._service.models.drain()
            if seconds:
                log.info("not ready any more, and stopping in %g s", seconds)
        return self.force_exit or time.monotonic() >= self._drained_at

    def ask_to_reload(self) -> None:
        """Reopen the log file and read the certificates again, soon; a signal may ask."""
        self._reload_requested = True

    def _reload(self) -> None:
        SERVER_LOG.reopen()
        try:
            files = https_files(self._service.settings)
            if files is not None and self.config.ssl is not None:
                # The context stays: new connections get the certificate that it has then.
                self.config.ssl.load_cert_chain(*files)
            for other in self._others:
                other.reload()
        except (FoveaError, OSError) as error:
            log.error("SIGHUP: the certificates stay as they were: %s", error)
        else:
            log.info("SIGHUP: the log file and the certificates were opened anew")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop all servers concurrently: they share the time to exit."""
        log.info("stopping")
        # Loads that are under way would outlast the requests.
        self._service.models.stop()
        timeout_s = self._service.settings.exit_timeout_secs
        others = asyncio.create_task(self._stop_others(timeout_s))
        await super().shutdown(sockets)
        while not (await asyncio.wait({others}, timeout=_LOOK_S))[0]:
            if self.force_exit:
                await self._stop_others(0)
        await others
        if self.force_exit:
            # uvicorn leaves it to be cancelled, with a traceback.
            await self.lifespan.shutdown()
        await asyncio.to_thread(self._service.models.close)
        self._service.close()
        if (tracer := self._service.traffic.tracer) is not None:
            await asyncio.to_thread(tracer.close)
        log.info("stopped")

    async def _stop_others(self, grace_s: float) -> None:
        await asyncio.gather(*(other.stop(grace_s) for other in self._others))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; the second SIGINT waits neither for load balancers nor for answers.

        uvicorn's own raises the signal again after shutting down: that would kill the process, and
        orchestrators would report a failed stop.
        """
        self._signalled()
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def make_server(
    app: App,
    signalled: Callable[[], None] = lambda: None,
    *,
    before: Sequence[FastRoute] = (),
    behind: Callable[[ASGIApp], ASGIApp] = lambda application: application,
    grpc_server: GrpcServer | None = None,
) -> Server:
    """Build the servers of all protocols; start them with `run()`. Signals call `signalled`, too.

    Args:
        app: the objects that answer.
        signalled: called by each signal, before the servers stop.
        before: routes that may take a request first.
        behind: wraps the application, as one that gets requests from the fronts of a cluster alone.
        grpc_server: in place of the usual one.
    """
    service, settings = app.service, app.service.settings
    certificate, key = https_files(settings) or (None, None)
    bounds = Bounds(
        share_of_descriptors(HTTP_SHARE),
        settings.body_timeout_s,
        service.budget,
        lambda: service.models.draining,
    )
    # uvicorn calls it like a class.
    connection = cast(
        "type[asyncio.Protocol]", partial(Connection, traffic=service.traffic, bounds=bounds)
    )
    return Server(
        uvicorn.Config(
            behind(create_application(app, before)),
            host=settings.http_address,
            port=settings.http_port,
            loop="auto",
            http=connection,
            ws=_sockets(service),
            ws_max_size=settings.http_max_input_size,
            ws_per_message_deflate=False,
            lifespan="on",
            access_log=False,
            # The log names the peer of the connection, not an address in a header.
            proxy_headers=False,
            log_config=None,
            server_header=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, math.ceil(settings.exit_timeout_secs)),
        ),
        service,
        _others(app, grpc_server),
        signalled,
        Trimmer(service.budget),
    )


def _sockets(service: Service) -> type[asyncio.Protocol] | Literal["none"]:
    """Return what makes the protocol of a WebSocket; without the package there are none."""
    if find_spec("websockets") is None:
        return "none"
    limits = SocketLimits(service.budget, service.settings.body_timeout_s)

    def make(**given: Any) -> asyncio.Protocol:
        from fovea_server.streams.sockets.protocol import SocketProtocol

        return SocketProtocol(**given, limits=limits)

    return cast("type[asyncio.Protocol]", make)


def _others(app: App, grpc_server: GrpcServer | None) -> list[GrpcServer | MetricsServer]:
    """Build the enabled servers; their imports cost tenths of a second."""
    service = app.service
    others: list[GrpcServer | MetricsServer] = []
    if grpc_server is not None:
        others.append(grpc_server)
    elif service.settings.allow_grpc:
        silence_grpc()
        from fovea_server.grpc.server import GrpcServer

        others.append(GrpcServer(service))
    if service.settings.allow_metrics:
        from fovea_server.metrics.listener import MetricsServer

        others.append(MetricsServer(service, app.features))
    return others
