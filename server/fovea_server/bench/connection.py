"""A kept HTTP connection that costs little: bytes of a request out, status and body in."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, Self, cast

import httptools


class Reply(NamedTuple):
    """The status and the body of an answer, and the seconds after which it says to ask again."""

    status: int
    body: bytes
    retry_after_s: float = 0.0


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._retry_after_s = 0.0
        self._waiting: asyncio.Future[Reply] | None = None
        self.open = True

    @classmethod
    async def to(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect; OSError where nobody listens."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port, ssl=tls)
        return connection

    async def ask(self, request: bytes) -> Reply:
        """Send a request, head and body, and wait for its answer.

        Raises:
            ConnectionResetError: the server hung up before its answer was whole.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def give_up(self, reason: str) -> None:
        """Hang up; who waits for an answer gets a TimeoutError."""
        self._end(TimeoutError(reason))
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are not of asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionResetError(f"the answer is no HTTP: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep Retry-After, in seconds; the parser calls this."""
        if name.lower() == b"retry-after" and value.isdigit():
            self._retry_after_s = float(value)

    def on_body(self, part: bytes) -> None:
        """Keep a part of the body; the parser calls this."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Give the answer out; the parser calls this."""
        body = b"".join(self._parts)
        answer = Reply(self._parser.get_status_code(), body, self._retry_after_s)
        self._parts.clear()
        self._retry_after_s = 0.0
        if not self._parser.should_keep_alive():
            self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who still waits."""
        self.open = False
        self._end(error or ConnectionResetError("closed by the server"))

    def _end(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
