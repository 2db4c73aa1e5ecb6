"""The sockets on which the server listens."""

from __future__ import annotations

import errno
import resource
import socket

from fovea_preprocess.errors import Unavailable
from fovea_server.settings import Settings

# Smallest number of file descriptors. A server with one model and no connection uses about 40.
_MIN_DESCRIPTORS = 64
_RAISE = "(`ulimit -n`, LimitNOFILE of systemd, `--ulimit nofile` of Docker)"
# Errors that the port causes. All other errors are caused by the address.
_OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES)

HTTP_SHARE, METRICS_SHARE = 0.5, 0.05
"""Fractions of the process's file descriptors that the connections of each port may use."""


def bind_all(settings: Settings) -> list[socket.socket]:
    """Bind the socket for HTTP, if HTTP is enabled, and check that all other servers can listen.

    Returns:
        A list with the bound socket for HTTP. If HTTP is disabled, the list is empty.

    Raises:
        Unavailable: ports are in use or addresses do not belong to this machine (the message lists
            all of them), or the limit of open files is below 64.
    """
    if _most_descriptors() < _MIN_DESCRIPTORS:
        raise Unavailable(
            f"the limit of open files is {_most_descriptors()}, but a server needs at least "
            f"{_MIN_DESCRIPTORS}, plus one for each connection: raise the limit {_RAISE}"
        )
    problems = []
    for name in settings.listening:
        try:
            _bind(settings, name).close()
        except Unavailable as error:
            problems.append(str(error))
    if problems:
        raise Unavailable("; ".join(problems))
    return [_bind(settings, "http")] if settings.allow_http else []


def share_of_descriptors(share: float) -> int:
    """Return a fraction of the process's limit for open files, but at least 16."""
    return max(16, int(share * _most_descriptors()))


def _most_descriptors() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**63 if limit == resource.RLIM_INFINITY else limit


def _bind(settings: Settings, name: str) -> socket.socket:
    address, port = getattr(settings, f"{name}_address"), getattr(settings, f"{name}_port")
    if name == "http":
        return bind(address, port, "--http-address or --host", "--http-port or --port")
    return bind(address, port, f"--{name}-address", f"--{name}-port")


def bind(
    host: str, port: int, host_flag: str = "--host", port_flag: str = "--port"
) -> socket.socket:
    """Bind a TCP socket.

    Args:
        host: IPv4 or IPv6 address.
        port: port number; 0 for any free port.
        host_flag: command-line flag for the address, for the error message.
        port_flag: command-line flag for the port, for the error message.

    Raises:
        Unavailable: the port is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Without this option, connections of a server that has just stopped would prevent a new server
    # from binding.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        advice = f"give an address of this machine with {host_flag}"
        if error.errno in _OF_THE_PORT:
            advice = f"stop the program that uses the port, or choose another port with {port_flag}"
        raise Unavailable(
            f"cannot listen on {host} port {port} ({error.strerror or error}): {advice}"
        ) from None
    return listener
