"""WebSockets of frames: a client's connections, and raw ones that do nothing alone."""

import json
import socket
import struct
from contextlib import contextmanager, suppress

import httpx
import pytest
from tests.conftest import DEMO
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

JPEG = (DEMO / "scene-1.jpg").read_bytes()
STREAM = "/v1/models/digits/stream"
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@contextmanager
def opened(server, query="", path=STREAM, **how):
    """A connection, and what the server said first."""
    with connect(f"ws://127.0.0.1:{server.port}{path}{query}", max_size=None, **how) as line:
        yield line, json.loads(line.recv(60))


def answer(line):
    return json.loads(line.recv(60))


def refusal(server, query="", path=STREAM, **how):
    with pytest.raises(InvalidStatus) as refused, opened(server, query, path, **how):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body)["error"]


def ending(line):
    """Read a connection to its end; return the code, the reason and the messages before."""
    said = []
    try:
        while True:
            said.append(answer(line))
    except ConnectionClosed as ended:
        return ended.rcvd.code, ended.rcvd.reason, said


def posted(server, image=JPEG, **options):
    address = server.predict_url("digits")
    answered = httpx.post(address, content=image, params=options, timeout=60)
    return answered.status_code, answered.json()


def raw(server, secret="", room=None):
    """A connection that does nothing by itself."""
    line = socket.socket()
    if room is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    line.settimeout(120)
    line.connect(("127.0.0.1", server.port))
    head = HANDSHAKE.format(path=STREAM).replace("\r\n", f"\r\nX-API-Key: {secret}\r\n", 1)
    line.sendall(head.encode())
    assert line.recv(12) == b"HTTP/1.1 101"
    return line


def binary(payload):
    """A message; its mask changes nothing."""
    return b"\x82\xfe" + struct.pack("!HI", len(payload), 0) + payload


def said_by(line):
    """All that the server says until it closes."""
    said = b""
    with suppress(ConnectionResetError):
        while piece := line.recv(65_536):
            said += piece
    line.close()
    return said
