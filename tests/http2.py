"""HTTP/2 by hand, for what no client of gRPC would send."""

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_HEADERS = 4


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


def begun_message(declared: int, sent: int) -> bytes:
    """The beginning of a message of gRPC: its size, and some of its bytes."""
    return b"\0" + struct.pack(">I", declared) + bytes(sent)
