"""HTTP/1.1 on the wire: uvicorn's, with bounds that it has not, and a short way for /v2."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fovea_server.http.exchange import Exchange
from fovea_server.http.front import Front

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT_S = 20.0


class ServerProtocol(HttpToolsProtocol):
    """A connection.

    Requests whose line and headers are too large, or do not arrive in time, are cut off. Those of
    the v2 protocol become an `Exchange`; all others go to the ASGI application.

    Args:
        front: answers the v2 protocol; the rest is uvicorn's.
    """

    def __init__(self, *args: Any, front: Front, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._front = front
        self._exchange: Exchange | None = None
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new connection its time to send a head."""
        super().connection_made(transport)
        self._begin_head()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, unless the head is too large already."""
        if self._in_head:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too large.")
                return
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head:
            self._watch_head()
        elif self._exchange is not None:
            self._exchange.wait_for_body()

    def on_message_begin(self) -> None:
        """Bound the head of every request of the connection."""
        self._begin_head()
        self.url, self.headers = b"", []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more of the head."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Send the request on its way; its body has limits of its own."""
        self._end_head()
        self._exchange = None
        if not self.url.startswith(b"/v2"):
            self._to_application()
            return
        previous = self.cycle
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        method = self.parser.get_method().decode("ascii")
        exchange = Exchange(
            self._front, self, method, self.url, dict(self.headers), bool(keep_alive)
        )
        self._exchange = self.cycle = exchange  # type: ignore[assignment]
        if previous is None or previous.response_complete:
            exchange.start()
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]

    def _to_application(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """More of a body."""
        if self._exchange is not None:
            self._exchange.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a body."""
        if self._exchange is not None:
            self._exchange.on_whole()
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Exchange):
            cycle.start()
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it, but not for ever."""
        self._idle_since = self.loop.time()
        if self.pipeline or not isinstance(self.cycle, Exchange):
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        # One timer that looks now and then costs less than one for every request.
        if self._idle_timer is None:
            self._watch_idleness(self.timeout_keep_alive)

    def _watch_idleness(self, seconds: float) -> None:
        self._idle_timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        busy = self.cycle is not None and not self.cycle.response_complete
        if left > 0 or busy:
            self._watch_idleness(left if left > 0 else 1.0)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is being done for the client."""
        self._end_head()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, Exchange):
                cycle.on_lost()
        if isinstance(self.cycle, Exchange):
            self.cycle = None  # type: ignore[assignment]
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        self._in_head, self._head_bytes = True, 0

    def _watch_head(self) -> None:
        # Only now and not at its beginning: most come in one piece.
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
