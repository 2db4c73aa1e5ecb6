"""The HTTP/1.1 protocol: uvicorn's, with further limits, and a short path beside ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fovea_connection.body import BodyReceiver, hand_over
from fovea_connection.exchange import Exchange, Refusal
from fovea_connection.parser import RequestParser
from fovea_connection.writing import Writing
from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.front import Front
from fovea_server.http.messages import Buffer, Successor

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT_S = 20.0

# Requests that are read before their turn. A connection that is not read is not seen to break, and
# more requests would be run for a client that has left.
_MOST_QUEUED = 8
_MOST_QUEUED_BYTES = 65_536
# Seconds that a client may go on sending a refused body.
_LINGER_S = 3.0

Cycle = Exchange | RequestResponseCycle


class ServerProtocol(HttpToolsProtocol):
    """An HTTP/1.1 connection.

    It is cut off when the line and headers of a request are too large or late, or when the client
    does not read its answers. Requests that one of the `fronts` takes become an `Exchange`; all
    others go to the ASGI application. Requests are answered in order, each after the answer before
    it is nearly sent.
    """

    parser: RequestParser

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        fronts: Sequence[Front],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = RequestParser(self)
        self._fronts = fronts
        self._front = fronts[0]  # for what belongs to no protocol
        self._writing: Writing
        self._running: Cycle | None = None
        """Whose turn it is, or was last; `cycle` is the newest."""
        self._exchange: Exchange | None = None
        """Of which the body is read now."""
        self._bare_bytes = 0
        """Read since there was anything of a body: heads, trailers, nothing."""
        self._in_head = self._broken = False
        self._wish = b""
        """The `Upgrade` of a request, which its parser leaves out."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first head."""
        super().connection_made(transport)
        self._writing = Writing(
            transport, self.loop, self._front.budget, self._front.service.settings.body_timeout_s
        )
        self._in_head, self._bare_bytes = True, 0
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless the head is too large."""
        if self._broken:
            return
        if self._bare_bytes > MAX_HEAD_BYTES:
            self.send_400_response("The request's headers are too large.")
            return
        self._bare_bytes += len(data)
        try:
            super().data_received(data)
        except InvalidRequest as error:
            self.send_400_response(str(error))
        if self._in_head:
            self._watch_head()
        elif self._exchange is not None:
            if self.flow.read_paused:
                self._exchange.stop_waiting()
            else:
                self._exchange.wait_for_body()
                rest = self._exchange.open_buffer()
                if rest is not None:
                    hand_over(self.transport, BodyReceiver(self, self._exchange, rest))

    def on_received(self) -> None:
        """Go on behind a body that a `BodyReceiver` has received, past the parser."""
        hand_over(self.transport, self)
        self.parser.begin()
        self.on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, after those before it; nothing more is read."""
        self._broken = True
        self._end_head()
        newest = self.cycle
        if self._exchange is not None:
            self._exchange.give_up(InvalidRequest(msg))
        elif isinstance(newest, RequestResponseCycle) and newest.more_body:
            if newest is self._running and not newest.response_started:
                Refusal(self._front, self, msg).start()
            else:
                self.close()
            return
        if newest is None or newest.keep_alive:
            self._submit(Refusal(self._front, self, msg))

    def on_message_begin(self) -> None:
        """Start the limits on the head of a request."""
        self._in_head, self._bare_bytes = True, 0
        self._exchange = None
        self.url, self.headers = b"", []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers after a body are ignored."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Start the request; its body has separate limits."""
        if self.parser.should_upgrade():
            self._wish = dict(self.headers).get(b"upgrade", b"")
            return
        headers = self.parser.begin_body(self.headers)
        if self._wish:
            headers[b"upgrade"], self._wish = self._wish, b""
        self._end_head()
        method = self.parser.get_method().decode("ascii")
        front = next((f for f in self._fronts if f.takes(method, self.url, self.headers)), None)
        if front is None:
            self._to_application()
            return
        is_old = self.parser.get_http_version() == "1.0"
        if is_old:  # It knows no interim answers (RFC 9110, 10.1.1).
            headers.pop(b"expect", None)
        keep_alive = not is_old and self.parser.should_keep_alive()
        request = front.admit(method, self.url.decode("latin-1"), headers, self.client)
        self._exchange = Exchange(front, self, request, bool(keep_alive))
        self._submit(self._exchange)

    def _submit(self, exchange: Exchange) -> None:
        previous, self.cycle = self.cycle, exchange  # type: ignore[assignment]
        if (previous is None or self._is_over(previous)) and not self.flow.write_paused:
            self._running = exchange
            exchange.start()
            return
        self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
        if len(self.pipeline) >= _MOST_QUEUED:
            self.flow.pause_reading()

    @staticmethod
    def _is_over(cycle: Cycle) -> bool:
        # Nothing is answered behind the last answer of a connection.
        return cycle.response_complete and cycle.keep_alive

    def _to_application(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of a body."""
        self._bare_bytes = 0
        if self._exchange is None:
            super().on_body(body)
        elif self._exchange.on_body(body) > _MOST_QUEUED_BYTES and self.pipeline:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Pass on the end of a body."""
        if self.parser.should_upgrade():
            return
        if self._exchange is None:
            super().on_message_complete()
        else:
            whole, self._exchange = self._exchange, None
            whole.on_whole()

    def _start_asgi_task(self, cycle: Cycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self._front.service.models.draining:
            # Once all that has arrived is parsed.
            self.loop.call_soon(self._end_if_last, cycle)
        if isinstance(cycle, Exchange):
            cycle.start()
        else:
            super()._start_asgi_task(cycle, app)

    def _end_if_last(self, cycle: Cycle) -> None:
        cycle.keep_alive &= bool(self.pipeline)

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it with a time limit."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        if self.pipeline:
            # Called later: a direct call would nest each answer in the one before it.
            self.loop.call_soon(self._start_next)
        else:
            self.flow.resume_reading()
        # One timer that checks now and then costs less than one for every request.
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _start_next(self) -> None:
        free = self._running is None or self._is_over(self._running)
        if not (free and self.pipeline) or self.flow.write_paused or self.transport.is_closing():
            return
        cycle: Cycle
        cycle, app = self.pipeline.pop()
        self.flow.resume_reading()
        self._start_asgi_task(cycle, app)
        if self._exchange is not None:
            self._exchange.wait_for_body()

    def write_large(self, pieces: list[Buffer], size: int) -> None:
        """Write pieces, and count their bytes until they are sent, or raise QueueFull."""
        self._writing.hold(size)
        self.transport.writelines(pieces)
        if not self.flow.write_paused:
            self._writing.on_sent()

    def pause_writing(self) -> None:
        """Pause: the client reads its answers too slowly."""
        super().pause_writing()
        self._writing.watch()

    def resume_writing(self) -> None:
        """Go on: nearly all that was written is sent."""
        super().resume_writing()
        self._writing.on_sent()
        self._start_next()

    def close(self) -> None:
        """Close after all that was written is sent."""
        self.transport.close()
        self._writing.watch()

    def succeed(self, successor: Successor) -> None:
        """Leave the connection to another protocol.

        Raises:
            InvalidRequest: the client did not wait for it; the connection is still this one's.
        """
        if self.pipeline or self._broken or self._in_head:
            raise InvalidRequest(
                "bytes came right behind the request for another protocol: send them once it is "
                "accepted (101)"
            )
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.connections.discard(self)
        successor.begin(self.transport, self.server_state)
        hand_over(self.transport, successor)

    def linger(self) -> None:
        """Close, but read on for a while: the client reads the answer only after sending."""
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.close)

    def _look(self) -> None:
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        busy = self.cycle is not None and not self.cycle.response_complete
        if left > 0 or busy:
            self._idle_timer = self.loop.call_later(left if left > 0 else 1.0, self._look)
        else:
            self.close()

    def shutdown(self) -> None:
        """Close, as soon as the newest request is answered."""
        super().shutdown()
        if self._exchange is not None:
            self._exchange.on_shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's requests."""
        self._end_head()
        self._writing.on_sent()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, Exchange):
                cycle.on_lost()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        # Not started earlier: most heads arrive in one piece.
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.close)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
