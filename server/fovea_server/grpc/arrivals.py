"""Limits messages that have begun to arrive: their time, their size, and the bytes of all of them.

gRPC's core collects a message out of sight, up to the size that its client declares, and hands it
over when it is whole. So what a connection has of unfinished messages is computed: the bytes that
its socket has received, without those of the messages that were handed over.

The core bounds one message and the calls of one connection, and not all of them together: Python
cannot set its quota of memory, and eight messages of 64 MiB fill the default budget. Three clients
attacked a server with default limits (two cores, 29 November 2026), with this file and without it:

                                                     most memory          longest wait over gRPC
    no attack                                        250 MB, 250 MB
    24 connections, each 60 MB of a 64 MB message    950 MB, 1.8 GB       .9 s, .2 s
    60 connections of 512 calls without a message    800 MB, 840 MB       6.5 s, 10.2 s

Without it the memory grows with the connections, of which there may be thousands. The last wait is
.7 s with 100 calls a connection, which is the limit since.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc

from fovea_preprocess.errors import BodyTimeout, FoveaError, InvalidRequest, QueueFull
from fovea_server.byte_budget import SLOWEST, ByteBudget, too_slow
from fovea_server.settings import Settings

# Messages that are not whole by then are looked at; nearly all are.
_LOOK_S = 0.1
# Looking takes no more than this share of a processor.
_SHARE = 0.05
# What a call takes while it waits: measured with thousands.
_CALL = 32 << 10
# Headers and frames of a message, beside its own bytes.
_AROUND = 1024
# The descriptor of a socket that is not found.
_NONE = -1
# Less may be headers alone, and no part of a message.
_NOTHING = 1 << 20
# Connections that are remembered before those that are closed are forgotten.
_REMEMBERED = 1024

# `tcpi_bytes_received` in the kernel's `tcp_info`, since Linux 4.1.
_RECEIVED = struct.Struct("Q")
_AT = 128


class Reader:
    """A call that waits for a message, or a stream that will.

    Attributes:
        since: when it began to wait; None while the server does not want the next message.
        timeout: the limit that ends it.
        error: why it was ended.
    """

    __slots__ = ("error", "since", "timeout")

    def __init__(self) -> None:
        self.since: float | None = None
        self.timeout: asyncio.Timeout
        self.error: FoveaError | None = None


class _Connection:
    """Keeps what is known of a connection.

    Attributes:
        readers: its calls that wait for messages.
        handed_over: bytes of whole messages, and of what is around them.
        charged: bytes of its calls and their unfinished messages in the budget.
        whole_at: when a message was last handed over, or nothing was unfinished, or enough came.
        seen: bytes of unfinished messages then.
        before: bytes that its socket had received when nothing was unfinished.
        descriptor: of its socket; None until somebody has looked.
    """

    __slots__ = (
        *("before", "charged", "descriptor", "handed_over", "peer", "readers", "seen", "whole_at"),
    )

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.readers: set[Reader] = set()
        self.handed_over = self.charged = self.before = self.seen = 0
        self.whole_at = 0.0
        self.descriptor: int | None = None


class Arrivals:
    """Receives the messages of all connections of a server; on its event loop only.

    Attributes:
        budget: where unfinished messages count, and whole ones are to be counted.
    """

    def __init__(self, budget: ByteBudget, settings: Settings) -> None:
        self.budget = budget
        self._timeout_s = settings.body_timeout_s
        self._connections: dict[str, _Connection] = {}
        self._busy: set[_Connection] = set()
        self._most = _REMEMBERED
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, context: grpc.aio.ServicerContext) -> bytes:
        """Receive the message of a unary call; a FoveaError if it does not come whole."""
        reader, connection = Reader(), self._begin(context.peer())
        connection.readers.add(reader)
        reader.since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout_s) as reader.timeout:
                data: bytes | object = await context.read()
            if isinstance(data, bytes):
                self._hand_over(connection, len(data), reader.since)
        except TimeoutError:
            raise reader.error or self._timeout_error() from None
        finally:
            self._end(connection, reader)
        if not isinstance(data, bytes):
            raise InvalidRequest("the call ended without a message")
        return data

    @contextmanager
    def stream(self, peer: str) -> Iterator[Reader]:
        """Follow the messages of a stream during a block."""
        reader, connection = Reader(), self._begin(peer)
        connection.readers.add(reader)
        try:
            yield reader
        finally:
            self._end(connection, reader)

    async def messages(
        self, requests: AsyncIterator[bytes], peer: str, reader: Reader
    ) -> AsyncIterator[bytes]:
        """Yield the messages of a stream; ends early if one stops arriving: `reader.error`."""
        loop, connection = asyncio.get_running_loop(), self._connections[peer]
        source = aiter(requests)
        while True:
            reader.since = loop.time()
            try:
                # A stream may wait for ever for a message that has not begun.
                async with asyncio.timeout(None) as reader.timeout:
                    data = await anext(source, None)
            except TimeoutError:
                return
            finally:
                reader.since = None
            if data is None:
                return
            self._hand_over(connection, len(data), loop.time())
            yield data

    def _begin(self, peer: str) -> _Connection:
        if (connection := self._connections.get(peer)) is None:
            if len(self._connections) >= self._most:
                self._forget()
            connection = self._connections[peer] = _Connection(peer)
        self._busy.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        return connection

    def _end(self, connection: _Connection, reader: Reader) -> None:
        connection.readers.discard(reader)
        if connection.readers:
            return
        # gRPC's core drops what it has of a call that is over.
        self._busy.discard(connection)
        self._charge(connection, 0)
        if connection.descriptor is None:
            return
        total = _count_received(connection.descriptor, connection.peer)
        if total is None:
            connection.descriptor = None
        connection.before, connection.handed_over = total or 0, 0

    def _hand_over(self, connection: _Connection, size: int, now: float) -> None:
        connection.handed_over += size + _AROUND
        connection.whole_at = now
        # The whole message is counted next.
        if connection.charged:
            self._charge(connection, max(0, connection.charged - size))

    def _charge(self, connection: _Connection, size: int) -> None:
        if size > connection.charged:
            self.budget.take(size - connection.charged)
        elif size < connection.charged:
            self.budget.give_back(connection.charged - size)
        connection.charged = size

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        began, worked = loop.time(), time.thread_time()
        looked = [each for each in self._busy if _is_slow(each, began - _LOOK_S)]
        if any(each.descriptor is None for each in looked):
            sockets = _open_sockets()
            for connection in looked:
                connection.descriptor = sockets.get(connection.peer, _NONE)
        for connection in looked:
            self._look_at(connection, began)
        self._timer = None
        if self._busy:
            wait_s = max(_LOOK_S, (time.thread_time() - worked) / _SHARE)
            self._timer = loop.call_later(wait_s, self._look)

    def _look_at(self, connection: _Connection, now: float) -> None:
        descriptor = _NONE if connection.descriptor is None else connection.descriptor
        if (total := _count_received(descriptor, connection.peer)) is None:
            # It is closed, and its calls are about to end; or another process has it.
            return
        size = max(0, total - connection.before - connection.handed_over)
        if size < _NOTHING:
            connection.whole_at = now
        waiting = [reader for reader in connection.readers if reader.since is not None]
        if abs(size - connection.seen) >= SLOWEST * self._timeout_s:
            # It arrives, if slowly.
            connection.whole_at, connection.seen = now, size
            for each in waiting:
                if each.timeout.when() is not None and not each.timeout.expired():
                    each.timeout.reschedule(now + self._timeout_s)
        size += _CALL * len(connection.readers)
        try:
            self._charge(connection, size)
        except QueueFull as full:
            # Not for a ping of a client that holds next to nothing, when others fill the budget.
            if size - connection.charged > _CALL:
                _stop(waiting, full)
            return
        until = now - self._timeout_s
        if connection.whole_at <= until:
            _stop([each for each in waiting if (each.since or now) <= until], self._timeout_error())

    def _forget(self) -> None:
        sockets = _open_sockets()
        for peer in self._connections.keys() - sockets.keys():
            if not self._connections[peer].readers:
                del self._connections[peer]
        self._most = max(_REMEMBERED, 2 * len(self._connections))

    def _timeout_error(self) -> BodyTimeout:
        return too_slow(self._timeout_s, "message")


def _is_slow(connection: _Connection, since: float) -> bool:
    return any(reader.since is None or reader.since <= since for reader in connection.readers)


def _stop(readers: list[Reader], error: FoveaError) -> None:
    now = asyncio.get_running_loop().time()
    for reader in readers:
        # Its own limit may have ended it, and it has not run yet.
        if reader.error is None and not reader.timeout.expired():
            reader.error = error
            reader.timeout.reschedule(now)


def _open_sockets() -> dict[str, int]:
    """Find the connections of this process: gRPC's name of the peer, and the descriptor."""
    found = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            with _borrow_socket(int(entry.name)) as borrowed:
                found[_peer(borrowed)] = int(entry.name)
        except (OSError, ValueError):
            # No socket, not connected, or not of IP.
            continue
    return found


def _count_received(descriptor: int, peer: str) -> int | None:
    """Count the bytes that a connection has received; None if it is closed."""
    try:
        with _borrow_socket(descriptor) as borrowed:
            if _peer(borrowed) != peer:
                return None
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AT + _RECEIVED.size)
            return int(_RECEIVED.unpack_from(info, _AT)[0])
    except (OSError, ValueError, struct.error):
        return None


@contextmanager
def _borrow_socket(descriptor: int) -> Iterator[socket.socket]:
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
