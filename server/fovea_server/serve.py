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

# Time in seconds for which an idle connection stays open. It is long, because clients reuse
# connections, and a request fails if the server closes its connection at the same time.
KEEP_ALIVE_S = 75
# Number of calls of `on_tick` per second.
_TICKS_OF_A_SECOND = 10
# Time in seconds between two checks for a second Ctrl-C during the shutdown.
_LOOK_S = 0.1


class _Descriptors:
    """Logs when the process runs out of file descriptors.

    In this case the event loop closes new connections without a log line.
    """

    def __init__(self) -> None:
        self._out = False

    def look(self) -> None:
        """Log once if no file descriptor is free, and once when some are free again."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if not self._out and error.errno in (errno.EMFILE, errno.ENFILE):
                self._out = True
                log.error(
                    "no file descriptor is free (%s; the limit is %d), and new connections are "
                    "closed: raise the limit (ulimit -n), or find the client that keeps "
                    "connections open",
                    error.strerror,
                    resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                )
            return
        if self._out:
            self._out = False
            log.warning("file descriptors are free again")


class Server(uvicorn.Server):
    """uvicorn's server. It also starts and stops the other servers, and closes the service."""

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
        """Monotonic time in seconds at which the server stops. None before the stop signal."""
        self._reload_requested = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start all servers.

        Raises:
            Unavailable: another server cannot listen.
        """
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
        """Run periodic checks, and return True when the server has to stop.

        The server stops `drain_secs` seconds after the stop signal. At a forced exit, it stops at
        once.
        """
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
                log.info(
                    "draining: the server reports that it is not ready, and stops in %g s", seconds
                )
        return self.force_exit or time.monotonic() >= self._drained_at

    def ask_to_reload(self) -> None:
        """Reopen the log file and reload the certificates at the next tick.

        A signal handler can call this method.
        """
        self._reload_requested = True

    def _reload(self) -> None:
        SERVER_LOG.reopen()
        try:
            files = https_files(self._service.settings)
            if files is not None and self.config.ssl is not None:
                # Change the existing context object, so that new connections use the new
                # certificate.
                self.config.ssl.load_cert_chain(*files)
            for other in self._others:
                other.reload()
        except (FoveaError, OSError) as error:
            log.error("SIGHUP: the previous certificates stay in use: %s", error)
        else:
            log.info("SIGHUP: the log file was reopened and the certificates were reloaded")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop all servers concurrently, because they share one timeout for the exit."""
        log.info("stopping")
        # Stop loading models, because a load could take longer than the remaining requests.
        self._service.models.stop()
        timeout_s = self._service.settings.exit_timeout_secs
        others = asyncio.create_task(self._stop_others(timeout_s))
        await super().shutdown(sockets)
        while not (await asyncio.wait({others}, timeout=_LOOK_S))[0]:
            if self.force_exit:
                await self._stop_others(0)
        await others
        if self.force_exit:
            # uvicorn skips this call at a forced exit. The task of the lifespan would then be
            # cancelled, and a traceback would be logged.
            await self.lifespan.shutdown()
        await asyncio.to_thread(self._service.models.close)
        self._service.close()
        if (tracer := self._service.traffic.tracer) is not None:
            await asyncio.to_thread(tracer.close)
        log.info("stopped")

    async def _stop_others(self, grace_s: float) -> None:
        await asyncio.gather(*(other.stop(grace_s) for other in self._others))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server. A second SIGINT skips the wait for load balancers and for responses.

        uvicorn's own handler raises the signal again after the shutdown. The process would then be
        killed by the signal, and orchestrators would report a failed stop.
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
    """Build the servers of all protocols. Start them with `run()`.

    Args:
        app: objects that answer requests.
        signalled: function that is called at every stop signal, before the servers stop.
        before: routes that are tried before all other routes.
        behind: function that wraps the ASGI application. A replica in a Ray cluster uses it to
            accept requests only from the Ray fronts (the servers of the nodes).
        grpc_server: server that replaces the usual gRPC server.
    """
    service, settings = app.service, app.service.settings
    certificate, key = https_files(settings) or (None, None)
    bounds = Bounds(
        share_of_descriptors(HTTP_SHARE),
        settings.body_timeout_s,
        service.budget,
        lambda: service.models.draining,
    )
    # uvicorn calls this object like a class, although it is a function.
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
            # The access log must contain the address of the connection, not an address from a
            # header.
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
    """Return a factory for WebSocket protocols, or "none" if `websockets` is not installed."""
    if find_spec("websockets") is None:
        return "none"
    limits = SocketLimits(service.budget, service.settings.body_timeout_s)

    def make(**given: Any) -> asyncio.Protocol:
        from fovea_server.streams.sockets.protocol import SocketProtocol

        return SocketProtocol(**given, limits=limits)

    return cast("type[asyncio.Protocol]", make)


def _others(app: App, grpc_server: GrpcServer | None) -> list[GrpcServer | MetricsServer]:
    """Build the enabled servers for gRPC and metrics.

    They are imported here, because their imports take tenths of a second.
    """
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
