"""The address at which a server listens for Frigate."""

from __future__ import annotations

import errno
import re
from ipaddress import ip_address
from typing import Any, TypeVar

import zmq

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.settings import Settings

S = TypeVar("S", bound="zmq.Socket[Any]")

_FORM = re.compile(r"ipc://(?P<path>.+)|tcp://(?P<host>\*|\[[^]]+\]|[^]:/[]+):(?P<port>\d+|\*)")
_MAX_PORT = 65535
# A frame that one detector sends, and the one after it.
_WAITING = 2
# Of a message, as ZeroMQ has no bound for all its parts: 4K in uint8, 1600 x 1600 in float32.
_LARGEST_PART = 32 << 20
# Peers whose machine is gone are noticed after this.
_HEARTBEAT_MS = 30_000
_LINGER_MS = 1000


def check_address(address: str) -> bool:
    """Return True if only this machine reaches an address.

    Raises:
        InvalidOption: it is none that ZeroMQ can listen on.
    """
    form = _FORM.fullmatch(address)
    if form is None or (form["port"] not in (None, "*") and int(form["port"]) > _MAX_PORT):
        raise InvalidOption(
            f"--frigate-address is '{address}': write it as tcp://127.0.0.1:5555, or as "
            "ipc:///tmp/cache/zmq_detector for a Frigate that shares this folder"
        )
    host = (form["host"] or "localhost").strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_free(settings: Settings) -> None:
    """Listen for a moment; Unavailable: the address is taken, or not this machine's."""
    context = zmq.Context()
    bound(context, settings).close()
    context.term()


def bound(context: zmq.Context[S], settings: Settings) -> S:
    """Open the socket; Unavailable: the address is taken, or not this machine's."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = _LINGER_MS
    socket.rcvhwm = _WAITING
    socket.ipv6 = "[" in settings.frigate_address
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.maxmsgsize = min(settings.http_max_input_size, _LARGEST_PART)
    try:
        socket.bind(settings.frigate_address)
    except zmq.ZMQError as error:
        socket.close()
        context.term()
        advice = "give an address of this machine with --frigate-address"
        if error.errno == errno.EADDRINUSE:
            advice = "stop what uses it, or choose another with --frigate-address"
        raise Unavailable(
            f"cannot listen on {settings.frigate_address} ({error.strerror}): {advice}"
        ) from None
    return socket
