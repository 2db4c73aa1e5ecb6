"""The HTTP and gRPC connections from a Ray front to one replica.

A Ray front is the server on a node that forwards requests to the replicas of models.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import grpc

from fovea_preprocess.errors import (
    AlreadyExists,
    AnswerTooLarge,
    Forbidden,
    FoveaError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from fovea_server.grpc.server import INFERENCE
from fovea_server.http.messages import Response
from fovea_server.ray.behind import TOKEN
from fovea_server.traffic.call import REQUEST_ID_HEADER

_CONNECT_S = 2.0
# Largest number of bytes of a response's head. It is also the number of buffered bytes of a body
# after which reading pauses.
_MAX_AHEAD = 1 << 20
# TCP keepalive options. If a machine does not answer for 11 seconds, its connection is treated as
# lost.
_ALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
# Headers that the Ray front writes itself, so they are not copied from a replica's response.
_OF_THE_FRONT = (
    b"connection",
    b"content-length",
    b"content-type",
    b"date",
    REQUEST_ID_HEADER.encode(),
)
_ERRORS: Mapping[str, type[FoveaError]] = {
    "ALREADY_EXISTS": AlreadyExists,
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": Forbidden,
    "RESOURCE_EXHAUSTED": AnswerTooLarge,
    "UNAUTHENTICATED": Unauthenticated,
    "UNAVAILABLE": Unavailable,
    "UNIMPLEMENTED": Unsupported,
}

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Metadata = tuple[tuple[str, str], ...]


class ReplicaLost(Exception):
    """Raised if a replica did not answer.

    `sent` is True if the request may have reached the replica.
    """

    def __init__(self, *, sent: bool) -> None:
        super().__init__(sent)
        self.sent = sent


class Link:
    """The connections to one replica. Use this class on one event loop only.

    `about` is the replica's metadata: addresses and token.

    Attributes:
        under_way: number of requests in flight.
        shunned_until: time on the event loop's clock. The replica gets no requests before this
            time.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.under_way, self.shunned_until = 0, 0.0
        self._host, self._port, self._token = about["host"], about["http"], about["token"]
        near = f"[{self._host}]" if ":" in self._host else self._host
        self._always = f"host: {near}\r\n{TOKEN}: {self._token}\r\n\r\n".encode()
        self._idle: list[Connection] = []
        self._channel: grpc.aio.Channel | None = None
        self._grpc = f"{near}:{about['grpc']}"

    async def http(self, head: bytes, body: bytes | bytearray) -> Response:
        """Send a request, and return its response.

        Args:
            head: request line and headers, without the empty line at the end.
            body: body of the request. The headers contain its length.

        Raises:
            ReplicaLost: the connection failed.
        """
        reader, writer = await self._connection()
        keeps = False
        try:
            writer.writelines((head, self._always, body))
            line, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
            headers = [(n.lower(), v.strip()) for n, _, v in (h.partition(b":") for h in lines)]
            given = dict(headers)
            content = await reader.readexactly(int(given[b"content-length"]))
            keeps = given.get(b"connection", b"").lower() != b"close"
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ReplicaLost(sent=True) from error
        finally:
            if keeps:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        kept = [each for each in headers if each[0] not in _OF_THE_FRONT]
        return Response(int(line[9:12]), [content], given[b"content-type"], kept)

    async def _connection(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                made = await asyncio.open_connection(self._host, self._port, limit=_MAX_AHEAD)
        except OSError as error:
            raise ReplicaLost(sent=False) from error
        sock = made[1].get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return made

    async def infer(self, data: bytes, metadata: Metadata) -> bytes:
        """Send a `ModelInferRequest`, and return the bytes of the response.

        Raises:
            ReplicaLost: the connection failed.
            FoveaError: the replica has returned an error.
        """
        call = self._open().unary_unary(f"/{INFERENCE}/ModelInfer")
        try:
            answer: bytes = await call(data, metadata=self._all(metadata))
        except grpc.aio.AioRpcError as error:
            raise _restore_error(error) from error
        return answer

    async def infer_streamed(self, data: bytes, metadata: Metadata) -> bytes:
        """Send a stream with one `ModelInferRequest`, and return the response like `infer`."""
        call = self._open().stream_stream(f"/{INFERENCE}/ModelStreamInfer")
        strict = (*self._all(metadata), ("triton_grpc_error", "true"))
        try:
            [answer] = [each async for each in call(iter((data,)), metadata=strict)]
        except grpc.aio.AioRpcError as error:
            raise _restore_error(error) from error
        # Skip the tag and the length of the field. Each byte of the length has seven bits.
        at = 1
        while answer[at] & 0x80:
            at += 1
        return bytes(answer[at + 1 :])

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            limits = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
            # Reconnect within 500 ms. By default, gRPC waits for seconds after a failed connection.
            options = [*((limit, -1) for limit in limits), ("grpc.max_reconnect_backoff_ms", 500)]
            self._channel = grpc.aio.insecure_channel(self._grpc, options=options)
        return self._channel

    def _all(self, metadata: Metadata) -> Metadata:
        return (*metadata, (TOKEN, self._token))

    async def close(self) -> None:
        """Cancel all requests in flight, and close all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
        if self._channel is not None:
            await self._channel.close()


def _restore_error(error: grpc.aio.AioRpcError) -> Exception:
    """Return the error of the replica. If no replica has answered, return `ReplicaLost`."""
    details = error.details() or ""
    if REQUEST_ID_HEADER not in dict(error.trailing_metadata() or ()):
        return ReplicaLost(sent="connect" not in details)
    return _ERRORS.get(error.code().name, FoveaError)(details)
