"""HTTP/1.1 connections: extends uvicorn's with limits for their number and for slow clients.

uvicorn starts a request while it still answers another one. Here a request waits until its head is
complete and the previous response is written: each connection has one request in flight.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import httptools
import orjson
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from fovea_preprocess.errors import InvalidRequest
from fovea_server.byte_budget import SLOWEST, ByteBudget, too_slow
from fovea_server.http.exchange import Exchange, scope_of
from fovea_server.http.framing import Framing, Head
from fovea_server.traffic.call import REQUEST_ID_HEADER, Call, lookup
from fovea_server.traffic.traffic import Traffic

HEAD_TIMEOUT_S = 20.0

# Largest number of bytes that are read ahead of their request. A connection that is not read does
# not notice that the client has disconnected.
_MAX_AHEAD = 65_536
# Seconds that a client may continue to send a body after its response was written.
_LINGER_S = 3.0
_NEVER = math.inf
# State of a TCP connection whose other end is closed, in Linux.
_CLOSE_WAIT = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the connections to one port.

    Attributes:
        most: largest number of connections. A new connection beyond this number closes an idle one.
        patience_s: seconds. A client that reads or sends more slowly than `SLOWEST` over this time
            is rejected or disconnected.
        budget: counts the bytes of bodies.
        draining: returns True if clients should disconnect.
    """

    most: int
    patience_s: float
    budget: ByteBudget
    draining: Callable[[], bool] = lambda: False


class Connection(HttpToolsProtocol):
    """A connection of one client. It answers requests one after the other.

    Args:
        traffic: logs bytes that are not a valid request.
        bounds: limits of all connections to this port.
    """

    # uvicorn uses this attribute: its `shutdown` lets an exchange finish, its
    # `connection_lost` ends it.
    cycle: Exchange | None  # type: ignore[assignment]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        traffic: Traffic,
        bounds: Bounds,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._traffic, self._bounds = traffic, bounds
        self._framing = Framing(sockets=self.ws_protocol_class is not None)
        self._due = 0.0
        """Time by which the client must have made progress, on the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = 0
        """Number of bytes of the body at the last check of its speed."""
        self._unsent = 0
        """Number of bytes that the client had not read at the last check."""
        self._lingers = self._continues = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first head; close an idle connection if there are too many."""
        idle = None
        if len(self.connections) >= self._bounds.most:
            mine = (one for one in self.connections if isinstance(one, Connection))
            idle = next((one for one in mine if one.is_idle), None)
        super().connection_made(transport)
        if idle is not None:
            idle.transport.close()
        elif len(self.connections) > self._bounds.most:
            transport.abort()
        self._wait(HEAD_TIMEOUT_S)

    @property
    def is_idle(self) -> bool:
        """Return True if no request waits for its response, so this may be closed."""
        return not (self._is_busy or self.transport.is_closing())

    @property
    def _is_busy(self) -> bool:
        exchange = self.cycle
        return (exchange is not None and not exchange.response_complete) or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Add received bytes, and handle requests that are complete and due."""
        self._framing.feed(data)
        if not self._continues:
            self._go_on()

    def _go_on(self) -> None:
        """Handle all received bytes that may be handled now."""
        self._continues = False
        try:
            while self._framing.waiting and self._take():
                pass
        except InvalidRequest as error:
            self._refuse(str(error))
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
        if self._due == _NEVER and not self._framing.is_between:
            self._wait_for_more()

    def _continue(self) -> None:
        """Continue in the next step of the event loop, so that responses do not nest."""
        if self._framing.waiting and not self._continues:
            self._continues = True
            self.loop.call_soon(self._go_on)

    def _take(self) -> bool:
        """Handle a head or a piece of a body; return False if it is incomplete or must wait."""
        return self._take_head() if self._framing.is_between else self._take_piece()

    def _take_piece(self) -> bool:
        exchange, piece = self.cycle, self._framing.take_piece()
        assert exchange is not None
        if piece:
            exchange.add(piece)
        if self._framing.is_between:
            self._end_message(exchange)
        return piece is not None

    def _take_head(self) -> bool:
        if self.transport.is_closing():
            self._framing.end()
            return False
        if self._is_busy:
            if self._framing.waiting > _MAX_AHEAD:
                self.flow.pause_reading()
            return False
        is_first = self.cycle is None
        had_begun = self._framing.has_begun_head
        head = self._framing.take_head()
        if head is None:
            if not (had_begun or is_first) and self._framing.has_begun_head:
                self._wait(HEAD_TIMEOUT_S)
            return False
        self._begin(head)
        return True

    def _begin(self, head: Head) -> None:
        """Start the application for a request."""
        self.url = head.target
        self.scope = scope = scope_of(self, head)  # type: ignore[assignment]
        if head.is_socket:
            self._end_timer()
            self.handle_websocket_upgrade()
            return
        is_first = self.cycle is None
        self.cycle = exchange = Exchange(self, self._bounds.budget, scope, head)
        if is_first and head.size and self._has_left():
            exchange.leave()
            # The end of the connection is read only after all bytes before it.
            self._framing.end()
        self._due = _NEVER
        if self._framing.is_between:
            self._end_message(exchange)
        self._start_asgi_task(exchange, self.app)  # type: ignore[arg-type]

    def _has_left(self) -> bool:
        """Return True if the client has closed its end already; the end is read after the request.

        Connecting, sending an image and leaving costs a client little, but answering costs much.
        """
        line = self.transport.get_extra_info("socket")
        if sys.platform != "linux" or line is None:
            return False
        state: bytes = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] == _CLOSE_WAIT

    def _end_message(self, exchange: Exchange) -> None:
        if self._bounds.draining() and not self._framing.waiting:
            exchange.keep_alive = False
        exchange.end_body()
        if self._lingers:
            self.close()
        else:
            self._wait_for_more()

    def _refuse(self, why: str) -> None:
        """Reject bytes that are not a request, after earlier responses; read nothing more."""
        self._framing.end()
        exchange = self.cycle
        if exchange is not None and not exchange.is_whole:
            exchange.leave()
            if exchange.response_started:
                # A request must not get a second response.
                self._linger()
                return
        client = None if self.client is None else self.client[0]
        call = Call(self._traffic, "-", "-", client, lookup({}))
        body = orjson.dumps({"error": why})
        lines = [STATUS_LINE[400], b"content-type: application/json\r\n"]
        lines += (b"%s: %s\r\n" % header for header in self.server_state.default_headers)
        lines.append(b"%s: %s\r\n" % (REQUEST_ID_HEADER.encode(), call.id.encode()))
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join((*lines, body)))
        call.end(400, len(body))
        self._linger()

    def end_answer(self, *, keep_alive: bool) -> None:
        """Start the next request, wait for it with a timeout, or close the connection."""
        self.server_state.total_requests += 1
        if keep_alive:
            self.flow.resume_reading()
            self._wait_for_more()
            self._continue()
        elif self._framing.is_between:
            self.close()
        else:
            self._linger()

    def _linger(self) -> None:
        # Most clients still send. A close now would reset their connection before they
        # read the response.
        self._lingers = True
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.close)

    def close(self) -> None:
        """Close the connection after all bytes are sent, or if the client reads too slowly."""
        self.transport.close()
        self._watch_reader()

    def pause_writing(self) -> None:
        """Pause writing, because the client reads too slowly."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Continue after nearly all bytes are sent."""
        super().resume_writing()
        self._unsent = 0
        if self.transport.is_closing():
            self._watch_reader()
        else:
            self._wait_for_more()
            self._continue()

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            self._wait(self._bounds.patience_s)

    def _wait_for_more(self) -> None:
        """Start the timeout for the client's next bytes; none while a request is answered."""
        if self._unsent:
            return
        if not self._framing.is_between and self.cycle is not None:
            self._arrived = self.cycle.arrived
            self._wait(self._bounds.patience_s)
        elif self._is_busy:
            self._due = _NEVER
        else:
            self._wait(self.timeout_keep_alive)

    def _wait(self, seconds: float) -> None:
        """Check the client after this number of seconds."""
        # The timer is renewed only when it expires, because a new timer for each
        # request would cost more.
        self._due = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        left = self._due - self.loop.time()
        if left == _NEVER:
            return
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        elif self._unsent:
            self._look_at_reader()
        elif not self._framing.is_between:
            self._look_at_speed()
        elif not self._is_busy:
            self.close()

    def _look_at_reader(self) -> None:
        read = self._unsent - self.transport.get_write_buffer_size()
        if read >= SLOWEST * self._bounds.patience_s:
            self._watch_reader()
        else:
            # A normal close would wait for the client.
            self.transport.abort()

    def _look_at_speed(self) -> None:
        exchange, patience_s = self.cycle, self._bounds.patience_s
        assert exchange is not None
        enough = exchange.arrived - self._arrived >= SLOWEST * patience_s
        self._arrived = exchange.arrived
        # The application may be the reason if it does not receive the body.
        if not (enough or self.flow.read_paused):
            if exchange.response_complete:
                self.close()
                return
            exchange.fail(partial(too_slow, patience_s))
        self._wait(patience_s)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and the exchange of this connection."""
        self._end_timer()
        self._framing.end()
        super().connection_lost(exc)
        # The connection and its exchange refer to each other.
        self.cycle = None
