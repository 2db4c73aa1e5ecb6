"""Running the application: sockets, signals, exit."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from fovea_server.app import OtherServer, create_app
from fovea_server.http.front import Front
from fovea_server.http.intake import Intake
from fovea_server.models.registry import Registry
from fovea_server.protocol import ServerProtocol
from fovea_server.settings import Settings
from fovea_server.v2.service import Service

# Clients keep connections for their next request; one that is closed as it is sent is an error.
KEEP_ALIVE_S = 75


class Server(uvicorn.Server):
    """uvicorn's server, which ends with exit code 0 after it has drained.

    uvicorn raises the signal once more after shutting down, so that the process would die of it;
    orchestrators then report a failed stop.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while serving, and put the old handlers back after."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.handle_exit(number, frame)


def make_server(settings: Settings, registry: Registry) -> Server:
    """A server for a registry that is being loaded; `run()` it.

    Raises:
        InvalidOption: a setting cannot be understood.
    """
    service, intake = Service.of(settings, registry), Intake(int(settings.max_held_mb * 1e6))
    # uvicorn calls it as it would call a class.
    protocol: Any = partial(ServerProtocol, front=Front(service, intake))
    return Server(
        uvicorn.Config(
            create_app(service, intake, _others(service)),
            host=settings.http_address,
            port=settings.http_port,
            loop="uvloop",
            http=protocol,
            ws="none",
            lifespan="on",
            access_log=settings.log_level == "debug",
            log_config=None,
            server_header=False,
            ssl_certfile=settings.http_server_cert,
            ssl_keyfile=settings.http_server_key,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, math.ceil(settings.exit_timeout_secs)),
        )
    )


def _others(service: Service) -> list[OtherServer]:
    """Those that are asked for. Their imports cost tenths of a second that others need not pay."""
    others: list[OtherServer] = []
    if service.settings.allow_grpc:
        from fovea_server.grpc.server import GrpcServer

        others.append(GrpcServer(service))
    if service.settings.allow_metrics:
        from fovea_server.metrics.server import MetricsServer

        others.append(MetricsServer(service))
    return others
