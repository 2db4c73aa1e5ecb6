"""Receives the rest of a large body straight into its buffer."""

from __future__ import annotations

import asyncio
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_connection.exchange import Exchange
    from fovea_connection.protocol import ServerProtocol

LARGE_BODY = 262_144
"""Bytes that are still to come, from which a buffer of their own is cheaper."""

# Read at once of what is dropped.
_DROPPED = 65_536

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_new_bytearray.restype = ctypes.py_object


def unset_buffer(size: int) -> bytearray:
    """Make a buffer without clearing it: memory is taken as bytes arrive, not as they are declared.

    It must not be read before all of it is written.
    """
    buffer: bytearray = _new_bytearray(None, size)
    return buffer


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Let another protocol receive what comes next."""
    if not transport.is_closing():
        # uvloop looks at the kind of its protocol when it begins to read.
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()


class BodyReceiver(asyncio.BufferedProtocol):
    """Takes the place of a connection's protocol until a body is whole.

    Args:
        rest: where the bytes go that are still to come.
    """

    def __init__(self, connection: ServerProtocol, exchange: Exchange, rest: memoryview) -> None:
        self._connection = connection
        self._exchange = exchange
        self._rest: memoryview | None = rest
        self._left = len(rest)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        if self._rest is None:
            return memoryview(bytearray(min(self._left, _DROPPED)))
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """Count bytes that have arrived."""
        self._left -= nbytes
        wanted = self._exchange.wants(nbytes)
        # uvloop keeps this object until the next one: it must not keep the body.
        kept = self._rest if wanted and self._left else None
        self._rest = None if kept is None else kept[nbytes:]
        if not self._left:
            self._connection.on_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end of the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that it has read nearly everything."""
        self._connection.resume_writing()
