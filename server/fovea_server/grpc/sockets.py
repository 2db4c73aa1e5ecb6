"""Asks the kernel about sockets that gRPC's core has opened; it does not tell of them itself."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

# `tcpi_bytes_received` in the kernel's `tcp_info`, since Linux 4.1.
_RECEIVED = struct.Struct("Q")
_AT = 128


def open_sockets() -> dict[str, int]:
    """Find the connections of this process: gRPC's name of the peer, and the descriptor."""
    found = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            with _borrowed(int(entry.name)) as borrowed:
                found[_peer(borrowed)] = int(entry.name)
        except (OSError, ValueError):
            # No socket, not connected, or not of IP.
            continue
    return found


def received(descriptor: int, peer: str) -> int | None:
    """Count the bytes that a connection has received; None if it is closed."""
    try:
        with _borrowed(descriptor) as borrowed:
            if _peer(borrowed) != peer:
                return None
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AT + _RECEIVED.size)
            return int(_RECEIVED.unpack_from(info, _AT)[0])
    except (OSError, ValueError, struct.error):
        return None


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        # It is gRPC's to close.
        borrowed.detach()


def _peer(connected: socket.socket) -> str:
    host, port, *more = connected.getpeername()
    host = host.removeprefix("::ffff:")
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    zone = f"%25{more[1]}" if more[1] else ""
    return f"ipv6:%5B{host.partition('%')[0]}{zone}%5D:{port}"
