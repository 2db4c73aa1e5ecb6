"""HTTP/1.1 on the wire, with a bound on what uvicorn leaves unbounded."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT_S = 20.0


class BoundedHeadProtocol(HttpToolsProtocol):
    """Requests whose line and headers are small and arrive in time; others are cut off."""

    _head_bytes = 0
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new connection its time to send a head."""
        super().connection_made(transport)
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, unless the head is too large already."""
        if self._in_head:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too large.")
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Watch the head of every request of the connection."""
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop watching: the body has limits of its own."""
        self._end_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._end_head()
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        self._end_head()
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
