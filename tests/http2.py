"""HTTP/2 by hand, for what no client of gRPC would send."""

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL = bytes((0, 0, 0, 8))
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call of gRPC, as literals that no table keeps (RFC 7541, section 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def connected(port: int) -> socket.socket:
    """A connection that has said hello."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def begin(connection: socket.socket, path: str, streams: Iterable[int]) -> None:
    """Begin calls that send headers and no message."""
    block = headers(path)
    connection.sendall(b"".join(frame(HEADERS, END_HEADERS, each, block) for each in streams))


class Closed(Exception):
    """The server has closed the connection."""


class Sender:
    """Sends as much of messages as the server gives room for; `answered` is what it says."""

    def __init__(self, connection: socket.socket, path: str) -> None:
        self._connection = connection
        self._unread = b""
        # Of the connection and of the stream (RFC 9113, section 6.9.2).
        self._room = [65_535, 65_535]
        self._initial = 65_535
        self.answered, self.ended = b"", False
        begin(connection, path, [1])

    def send(self, data: bytes) -> None:
        """Send all of it, unless the server ends the call."""
        at = 0
        while at < len(data) and not self.ended:
            size = min(16_384, len(data) - at, *self._room)
            if size <= 0:
                self.receive()
                continue
            self._connection.sendall(frame(DATA, 0, 1, data[at : at + size]))
            at += size
            self._room = [room - size for room in self._room]

    def receive(self) -> None:
        """Wait for frames, and take what they say; Closed: there are no more."""
        received = self._connection.recv(65_536)
        if not received:
            raise Closed
        self._unread += received
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3])
            if len(self._unread) < 9 + size:
                return
            kind, stream = self._unread[3], int.from_bytes(self._unread[5:9])
            flags, payload = self._unread[4], self._unread[9 : 9 + size]
            self._unread = self._unread[9 + size :]
            if kind == WINDOW_UPDATE:
                self._room[min(stream, 1)] += int.from_bytes(payload)
            elif kind == SETTINGS and not flags & ACK:
                for at in range(0, size, 6):
                    if int.from_bytes(payload[at : at + 2]) == INITIAL_WINDOW_SIZE:
                        initial = int.from_bytes(payload[at + 2 : at + 6])
                        self._room[1] += initial - self._initial
                        self._initial = initial
                self._connection.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._connection.sendall(frame(PING, ACK, 0, payload))
            elif kind in (HEADERS, RST_STREAM, GOAWAY):
                self.answered += payload
                self.ended |= kind != HEADERS or bool(flags & END_STREAM)


def begun_message(declared: int, sent: int) -> bytes:
    """The beginning of a message of gRPC: its size, and some of its bytes."""
    return b"\0" + struct.pack(">I", declared) + bytes(sent)
