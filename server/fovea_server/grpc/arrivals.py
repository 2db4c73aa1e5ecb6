"""Limits the time and the memory of gRPC messages that have not arrived completely.

gRPC's core collects the bytes of a message internally, up to the size that the client declares, and
returns the message when it is complete. The size of a connection's unfinished messages is therefore
computed: the bytes that its socket has received minus the bytes of its complete messages.

The core limits the size of a message and the number of calls per connection, but not the memory of
all connections together. Python cannot set its memory quota, and eight messages of 64 MiB fill the
default budget. Three clients attacked a server with default limits (two cores, 29 November 2026).
The first value of each pair is with this module, the second without it:

                                                     most memory          longest wait over gRPC
    no attack                                        250 MB, 250 MB
    24 connections, each 60 MB of a 64 MB message    950 MB, 1.8 GB       .9 s, .2 s
    60 connections of 512 calls without a message    800 MB, 840 MB       6.5 s, 10.2 s

Without this module the memory grows with the number of connections, which may be thousands. The
wait in the last row is .7 s with the limit of 100 calls per connection that was added afterwards.
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

# Time in seconds between two checks of unfinished messages. Nearly all messages arrive completely
# within this time.
_LOOK_S = 0.1
# Largest fraction of one processor's time that the checks may take.
_SHARE = 0.05
# Memory in bytes that a waiting call takes, measured with thousands of calls.
_CALL = 32 << 10
# Estimated size in bytes of the HTTP/2 headers and frames around one message.
_AROUND = 1024
# Stands for the file descriptor of a connection whose socket was not found.
_NONE = -1
# Size in bytes. Fewer received bytes are not treated as an unfinished message, because they may be
# only HTTP/2 headers.
_NOTHING = 1 << 20
# Number of remembered connections. When it is reached for the first time, closed connections are
# removed.
_REMEMBERED = 1024

# Format of the field `tcpi_bytes_received` (Linux 4.1 or newer), and the field's position in the
# kernel's struct `tcp_info`.
_RECEIVED = struct.Struct("Q")
_AT = 128


class Reader:
    """A call that waits for its message, or a stream that may wait for its next message.

    Attributes:
        since: time at which the wait for a message began; None while the server does not read the
            next message.
        timeout: context manager that can end the wait.
        error: reason why the server ended the wait; None if it did not.
    """

    __slots__ = ("error", "since", "timeout")

    def __init__(self) -> None:
        self.since: float | None = None
        self.timeout: asyncio.Timeout
        self.error: FoveaError | None = None


class _Connection:
    """State of one connection.

    Attributes:
        peer: gRPC's name of the client's address.
        readers: calls that wait for messages.
        handed_over: number of bytes of complete messages, including their headers and frames.
        charged: number of bytes that the memory budget counts for the calls and their unfinished
            messages.
        whole_at: time of the last progress: a message became complete, a check found no unfinished
            message, or enough new bytes arrived.
        seen: number of bytes of unfinished messages when enough new bytes arrived for the last
            time.
        before: number of bytes that the socket had received at the last time without a call.
        descriptor: file descriptor of the socket; None before it is searched.
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
    """Receives the messages of all connections of a server. Use it on the server's event loop only.

    Attributes:
        budget: memory budget. This class counts unfinished messages in it; the calls count complete
            messages.
    """

    def __init__(self, budget: ByteBudget, settings: Settings) -> None:
        self.budget = budget
        self._timeout_s = settings.body_timeout_s
        self._connections: dict[str, _Connection] = {}
        self._busy: set[_Connection] = set()
        self._most = _REMEMBERED
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, context: grpc.aio.ServicerContext) -> bytes:
        """Receive the message of a unary call.

        Raises:
            FoveaError: the message did not arrive completely, in time and within the budget.
        """
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
        """Return a context manager that watches the messages of a stream."""
        reader, connection = Reader(), self._begin(peer)
        connection.readers.add(reader)
        try:
            yield reader
        finally:
            self._end(connection, reader)

    async def messages(
        self, requests: AsyncIterator[bytes], peer: str, reader: Reader
    ) -> AsyncIterator[bytes]:
        """Yield the messages of a stream.

        If a message stops arriving, the iterator ends and `reader.error` has the reason.
        """
        loop, connection = asyncio.get_running_loop(), self._connections[peer]
        source = aiter(requests)
        while True:
            reader.since = loop.time()
            try:
                # A stream may wait forever for a message that has not begun to arrive.
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
        # All calls of the connection have ended, so gRPC's core has freed their unfinished
        # messages.
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
        # Release the bytes of the complete message here, because the caller counts them next.
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
            # The connection is closed and its calls are about to end, or the connection belongs to
            # another process.
            return
        size = max(0, total - connection.before - connection.handed_over)
        if size < _NOTHING:
            connection.whole_at = now
        waiting = [reader for reader in connection.readers if reader.since is not None]
        if abs(size - connection.seen) >= SLOWEST * self._timeout_s:
            # The message arrives slowly, but faster than the minimum speed, so the timeout starts
            # again.
            connection.whole_at, connection.seen = now, size
            for each in waiting:
                if each.timeout.when() is not None and not each.timeout.expired():
                    each.timeout.reschedule(now + self._timeout_s)
        size += _CALL * len(connection.readers)
        try:
            self._charge(connection, size)
        except QueueFull as full:
            # Stop the calls only for a large message. Otherwise a small message such as a ping
            # would be rejected because other clients fill the budget.
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
        # The reader's timeout may have expired before the reader's task could run.
        if reader.error is None and not reader.timeout.expired():
            reader.error = error
            reader.timeout.reschedule(now)


def _open_sockets() -> dict[str, int]:
    """Return the file descriptor of each TCP connection of this process, by gRPC's peer name."""
    found = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            with _borrow_socket(int(entry.name)) as borrowed:
                found[_peer(borrowed)] = int(entry.name)
        except (OSError, ValueError):
            # skip: this descriptor is not a connected TCP socket
            continue
    return found


def _count_received(descriptor: int, peer: str) -> int | None:
    """Return the number of bytes that a connection has received, or None if it is closed."""
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
        # Detach the descriptor instead of closing it, because gRPC owns it.
        borrowed.detach()


def _peer(connected: socket.socket) -> str:
    host, port, *more = connected.getpeername()
    host = host.removeprefix("::ffff:")
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    zone = f"%25{more[1]}" if more[1] else ""
    return f"ipv6:%5B{host.partition('%')[0]}{zone}%5D:{port}"
