"""The socket that the server listens on."""

from __future__ import annotations

import socket

from fovea_preprocess.errors import Unavailable


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port that is taken is told before anything is loaded.

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
            "stop what uses it, or choose another with --port"
        ) from None
    return listener
