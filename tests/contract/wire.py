"""Requests as bytes, cut into segments as a test wants them, and the answers that come back."""

import json
import re
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass

# Asks for the connection to be closed: a client cannot half-close TLS.
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LIVE = (200, b'{"live":true}')

Answers = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Door:
    """A port that speaks HTTP, with TLS or without."""

    port: int
    tls: ssl.SSLContext | None = None

    def converse(self, *segments: bytes, pause_s: float = 0.02) -> Answers:
        """Send every segment alone, and read until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.tls.wrap_socket(plain) if self.tls else plain as connection:
                for segment in segments:
                    connection.sendall(segment)
                    time.sleep(pause_s)
                received = b""
                while piece := connection.recv(65_536):
                    received += piece
                    if not self.tls and b"\r\nconnection: close" in received.lower():
                        # The server waits for this, seconds at most, and may have gone before.
                        with suppress(OSError):
                            plain.shutdown(socket.SHUT_WR)
        return answers(received)


def answers(received: bytes) -> Answers:
    """Status and body of every answer; the server says the length of each."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        size = int(length[1]) if length else 0
        assert len(rest) >= size
        found.append((int(head.split(b" ", 2)[1]), rest[:size]))
        received = rest[size:]
    return found


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The line and the headers of a request."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


def length(body: bytes) -> str:
    """The header for a body."""
    return f"Content-Length: {len(body)}"


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks, for `Transfer-Encoding: chunked`."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def infer_body(image: bytes) -> tuple[bytes, str]:
    """An encoded image as the body of an infer request, and the size of the JSON in front."""
    row = len(image).to_bytes(4, "little") + image
    tensor = {"name": "images", "shape": [1], "datatype": "BYTES"}
    document = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(row)}}]}
    text = json.dumps(document).encode()
    return text + row, str(len(text))


def found(answer: tuple[int, bytes]) -> tuple[int, object]:
    """An answer without what differs each time: how long the work took."""
    status, body = answer
    try:
        document = json.loads(body)
    except ValueError:
        return status, body
    return status, {name: value for name, value in document.items() if name != "timing_ms"}
