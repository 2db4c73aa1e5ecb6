"""The sockets that the server listens on."""

from __future__ import annotations

import socket

from fovea_preprocess.errors import Unavailable
from fovea_server.settings import Settings


def bind_all(settings: Settings) -> list[socket.socket]:
    """The listeners for HTTP: one, or none where HTTP is not served.

    The other servers make listeners of their own, later; that their ports are free is made sure
    of here.

    Raises:
        Unavailable: a port is taken, or an address is not this machine's.
    """
    listeners = []
    if settings.allow_http:
        listeners.append(bind(settings.http_address, settings.http_port))
    if settings.allow_grpc:
        bind(settings.grpc_address, settings.grpc_port, "--grpc-port").close()
    if settings.allow_metrics:
        bind(settings.metrics_address, settings.metrics_port, "--metrics-port").close()
    return listeners


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A bound socket, so that a port that is taken is told before anything is loaded.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        flag: of the command line, that chooses the port.

    Raises:
        Unavailable: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Connections of a server that has just stopped must not keep the next one from starting.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host} port {port} ({error.strerror or error}): "
            f"stop what uses it, or choose another with {flag}"
        ) from None
    return listener
