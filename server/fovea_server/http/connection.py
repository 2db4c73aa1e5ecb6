"""HTTP/1.1 connections: uvicorn's class with limits for many connections and for slow clients.

uvicorn parses the next request of a connection while it still answers the previous one. This class
starts a request after its head is complete and the previous response is written, so each connection
has at most one request in flight.
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

# Number of received bytes of further requests at which reading pauses. While reading pauses, the
# server cannot detect that the client has disconnected.
_MAX_AHEAD = 65_536
# Time in seconds for which a client may still send its body after the response was written.
_LINGER_S = 3.0
_NEVER = math.inf
# State of a TCP connection after the client has closed its end (CLOSE_WAIT in Linux).
_CLOSE_WAIT = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the connections to one port.

    Attributes:
        most: largest number of connections. If a new connection exceeds it, an idle connection is
            closed.
        patience_s: time in seconds over which the speed of a client is measured. A client that
            reads or sends more slowly than `SLOWEST` is rejected or disconnected.
        budget: memory budget that counts the bytes of bodies.
        draining: function that returns True if the server stops and clients should disconnect.
    """

    most: int
    patience_s: float
    budget: ByteBudget
    draining: Callable[[], bool] = lambda: False


class Connection(HttpToolsProtocol):
    """A connection of one client. It answers requests one after the other.

    Args:
        traffic: log and metrics for bytes that are not a valid request.
        bounds: limits of all connections to this port.
    """

    # uvicorn uses this attribute. Its method `shutdown` lets an exchange finish, and its method
    # `connection_lost` ends the exchange.
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
        """Time on the event loop's clock at which the client's progress is checked."""
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = 0
        """Number of received bytes of the body at the previous check of the client's speed."""
        self._unsent = 0
        """Number of bytes that the client had not read at the previous check."""
        self._lingers = self._continues = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first head.

        If there are too many connections, close an idle one.
        """
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
        """Return whether no request waits for its response. Such a connection may be closed."""
        return not (self._is_busy or self.transport.is_closing())

    @property
    def _is_busy(self) -> bool:
        exchange = self.cycle
        return (exchange is not None and not exchange.response_complete) or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Add received bytes, and handle all complete requests whose turn has come."""
        self._framing.feed(data)
        if not self._continues:
            self._go_on()

    def _go_on(self) -> None:
        """Handle the received bytes until more must arrive or a response must be written first."""
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
        """Continue in the event loop's next step, to avoid recursive calls between responses."""
        if self._framing.waiting and not self._continues:
            self._continues = True
            self.loop.call_soon(self._go_on)

    def _take(self) -> bool:
        """Handle a head or a piece of a body.

        Return False if more bytes must arrive or a response must be written first.
        """
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
            # Drop further bytes, because the server detects the closed connection only after it has
            # read all bytes.
            self._framing.end()
        self._due = _NEVER
        if self._framing.is_between:
            self._end_message(exchange)
        self._start_asgi_task(exchange, self.app)  # type: ignore[arg-type]

    def _has_left(self) -> bool:
        """Return whether the client has already closed its end of the connection.

        For a client it is cheap to connect, send an image and disconnect, but an answer is
        expensive for the server. Without this check, the server would notice the disconnect only
        after it has read the request.
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
        """Reject bytes that are not a request, after earlier responses. Read no further bytes."""
        self._framing.end()
        exchange = self.cycle
        if exchange is not None and not exchange.is_whole:
            exchange.leave()
            if exchange.response_started:
                # The response to the previous request has begun, and an error response in it would
                # corrupt it.
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
        # Close later, because the client may still be sending. An immediate close would reset the
        # connection before the client has read the response.
        self._lingers = True
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.close)

    def close(self) -> None:
        """Close the connection after all bytes are sent.

        Abort it if the client reads too slowly.
        """
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
        """Start the timeout for the client's next bytes.

        There is no timeout while the server answers a request.
        """
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
        """Schedule a check of the client's progress after this number of seconds."""
        # A running timer is kept and renewed when it expires, because a new timer for each request
        # would take more CPU time.
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
            # Abort, because a normal close would wait until the client has read all bytes.
            self.transport.abort()

    def _look_at_speed(self) -> None:
        exchange, patience_s = self.cycle, self._bounds.patience_s
        assert exchange is not None
        enough = exchange.arrived - self._arrived >= SLOWEST * patience_s
        self._arrived = exchange.arrived
        # If reading is paused, the application does not receive the body, and the client is not the
        # cause.
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
        # Remove the reference, because the connection and its exchange refer to each other.
        self.cycle = None
