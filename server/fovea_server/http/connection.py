"""HTTP/1.1 connections: uvicorn's, with bounds on heads, framing, idle and slow clients.

uvicorn reads a request as it arrives. Here the head of a request is held back until it is whole and
its turn has come, so that what is no request never reaches llhttp, and one connection has one
request under way. llhttp parses heads alone; where a body ends is decided here.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

import httptools
import orjson
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from fovea_preprocess.errors import InvalidRequest
from fovea_server.traffic.call import REQUEST_ID_HEADER, Call, lookup
from fovea_server.traffic.traffic import Traffic

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD_BYTES = 65_536
MOST_HEADERS = 256
HEAD_TIMEOUT_S = 20.0

# Bytes that are read before their turn. A connection that is not read is not seen to break.
_MOST_AHEAD = 65_536
# Bytes of a body that the application has not taken.
_MOST_BODY = 1 << 20
# Each chunk takes a microsecond of the event loop: few of these may be short.
_TINY, _MOST_TINY = 64, 4096
# Seconds that a client may go on sending a body whose answer is written.
_LINGER_S = 3.0

_TOKEN = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]")
_REQUEST_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_SOCKET = re.compile(rb"\r\nupgrade:[\t ]*websocket[\t ]*\r\n", re.IGNORECASE)
_SOCKET_VERSION = re.compile(rb"\r\nsec-websocket-version:[\t ]*13[\t ]*\r\n", re.IGNORECASE)
# A size of more digits is none; an extension has no control characters.
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_MOST_DIGITS = 20
_CRLF = b"\r\n"


class Part(Enum):
    """The part of a message that the next byte of a connection belongs to."""

    HEAD = auto()
    """The line and headers, or an empty line before them, which RFC 9112 (2.2) allows."""
    BODY = auto()
    """As many bytes as the head has declared."""
    SIZE = auto()
    """The line before a chunk."""
    CHUNK = auto()
    TRAILERS = auto()
    NOTHING = auto()
    """What follows is dropped: the client has sent its last request, or what is none."""


# To look up a member of an Enum takes as long as the rest of a step.
_HEAD, _BODY, _SIZE, _CHUNK, _TRAILERS, _NOTHING = Part


HTTP_SHARE, METRICS_SHARE = 0.5, 0.05
"""The shares of the file descriptors of this process that the connections of a port may take."""


def most_connections(share: float) -> int:
    """Return how many connections a port may have."""
    return max(16, int(share * resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the connections to one port.

    Attributes:
        most: connections at once; beyond, one that has no request under way makes room.
        patience_s: a client that reads nothing of its answer for so long is cut off.
        draining: returns True once clients are to leave.
    """

    most: int
    patience_s: float
    draining: Callable[[], bool] = lambda: False


class Connection(HttpToolsProtocol):
    """A connection of one client; its requests are answered one after the other.

    Args:
        traffic: logs what is no request.
        bounds: of all connections to this port.
    """

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
        self._part = _HEAD
        self._read = bytearray()
        """Bytes that are read, and not taken yet."""
        self._searched = 0
        """Bytes of `_read` in which there is no end of the head."""
        self._left = 0
        """Bytes of the body, or of the chunk with the end of its line."""
        self._is_last = False
        """Nothing is read behind this request."""
        self._tiny_chunks = self._trailer_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._lingers = self._continues = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first head; make room where there are too many."""
        idle = None
        if len(self.connections) >= self._bounds.most:
            idle = next((one for one in self.connections if _is_idle(one)), None)
        super().connection_made(transport)
        self._behind_answer = _BehindAnswer(self, transport)
        if idle is not None:
            idle.transport.close()
        elif len(self.connections) > self._bounds.most:
            transport.abort()
        self._watch_head()

    @property
    def is_idle(self) -> bool:
        """True if no request is under way."""
        return self._part in (_HEAD, _NOTHING) and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        cycle = self.cycle
        return (cycle is not None and not cycle.response_complete) or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Take bytes, as far as it is their turn."""
        if self._part is _BODY and not self._read and len(data) < self._left:
            self._left -= len(data)
            self.on_body(data)
            return
        self._read += data
        if not self._continues:
            self._go_on()

    def _go_on(self) -> None:
        """Take from what was read all that may be taken now."""
        self._continues = False
        try:
            while self._read and self._take():
                pass
        except InvalidRequest as error:
            self.send_400_response(str(error))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _continue(self) -> None:
        """Go on later: a direct call would nest each answer in the one before it."""
        if self._read and not self._continues:
            self._continues = True
            self.loop.call_soon(self._go_on)

    def _take(self) -> bool:
        """Take the next part of what was read; False if it is not whole, or not its turn."""
        if self._part is _HEAD:
            return self._take_head()
        if self._part is _BODY:
            return self._take_body()
        if self._part is _CHUNK:
            return self._take_chunk()
        if self._part is _NOTHING:
            self._read.clear()
            return False
        return self._take_line()

    def _take_head(self) -> bool:
        """Begin a request; False if its head is not whole, or another one is to be answered."""
        if self.transport.is_closing():
            self._read.clear()
            return False
        if self._is_busy:
            if len(self._read) > _MOST_AHEAD:
                self.flow.pause_reading()
            return False
        while self._read.startswith(_CRLF):
            del self._read[:2]
        if not self._read:
            return False
        end = self._read.find(b"\r\n\r\n", self._searched) + 4
        if len(self._read) > MAX_HEAD_BYTES and not 3 < end <= MAX_HEAD_BYTES:
            raise InvalidRequest("The request's headers are too large.")
        self._unset_keepalive_if_required()
        if end < 4:
            # A client that speaks TLS here would wait until its head is late.
            if _TOKEN.match(self._read) is None and self._read != b"\r":
                raise InvalidRequest("a request begins with METHOD TARGET HTTP/1.1")
            self._searched = max(0, len(self._read) - 3)
            self._watch_head()
            return False
        head = bytes(self._read[:end])
        del self._read[:end]
        self._searched = 0
        self._end_head()
        self._begin(head)
        return True

    def _begin(self, head: bytes) -> None:
        if _REQUEST_LINE.match(head) is None:
            raise InvalidRequest("a request begins with METHOD TARGET HTTP/1.1")
        if _UPGRADE.search(head) and not (self.ws_protocol_class and _asks_for_socket(head)):
            # Ignored, as RFC 9110 (7.8) allows: llhttp would read the body as the next request.
            head = _UPGRADE.sub(b"", head)
        # It sees this head alone, and waits in vain for a body.
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("CONNECT is for proxies") from None
            if self._read:
                raise InvalidRequest(
                    "bytes came right behind the request for a WebSocket: send them once it is "
                    "accepted (101)"
                ) from None
            self._part = _NOTHING
            self.handle_websocket_upgrade()
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, InvalidRequest):
                raise error.__context__ from None
            raise

    def on_headers_complete(self) -> None:
        """Check a head, and start its request."""
        size, chunked = self._framing()
        if self.parser.should_upgrade():
            super().on_headers_complete()
            return
        keeps = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._is_last = not keeps
        super().on_headers_complete()
        # Closed behind the answer, which a client reads only once it has sent its body.
        self.cycle.transport = self._behind_answer  # type: ignore[assignment]
        self._left, self._tiny_chunks = size, 0
        self._part = _SIZE if chunked else _BODY
        if not chunked and not size:
            self._end_message()

    def _framing(self) -> tuple[int, bool]:
        """Return the size of the body, 0 where it comes in chunks, and whether it does.

        Raises:
            InvalidRequest: a proxy may read the head in another way.
        """
        size = 0
        hosts = codings = 0
        chunked = False
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                if len(value) > _MOST_DIGITS:
                    raise InvalidRequest("the Content-Length is no size of a body")
                # llhttp has refused what is no number, a second one, and one beside chunks.
                size = int(value)
            elif name == b"transfer-encoding":
                codings += 1
                chunked = value.lower() == b"chunked"
                if not chunked:
                    raise InvalidRequest("the only Transfer-Encoding that is understood is chunked")
        # HTTP/1.0 needs no host.
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise InvalidRequest(f"a request has one Host header, and this one has {hosts}")
        if codings > 1:
            raise InvalidRequest("a body has one Transfer-Encoding, and that is chunked")
        if len(self.headers) > MOST_HEADERS:
            raise InvalidRequest(f"a request has at most {MOST_HEADERS} headers")
        return size, chunked

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of a body; one that is taken before the next comes is not copied."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        held: bytes | bytearray = cycle.body
        if not held:
            cycle.body = body  # type: ignore[assignment]
        elif isinstance(held, bytearray):
            held += body
        else:
            cycle.body = bytearray(held) + body
        if len(cycle.body) > _MOST_BODY:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Do nothing: the parser sees heads alone."""

    def _take_body(self) -> bool:
        taken = min(self._left, len(self._read))
        self.on_body(bytes(memoryview(self._read)[:taken]))
        del self._read[:taken]
        self._left -= taken
        if not self._left:
            self._end_message()
        return True

    def _take_line(self) -> bool:
        """Take the size of a chunk, or a trailer; False if it is not whole."""
        end = self._read.find(b"\n") + 1
        if not end and len(self._read) <= MAX_HEAD_BYTES:
            return False
        line = bytes(self._read[:end])
        del self._read[:end]
        if self._part is _TRAILERS:
            self._trailer_bytes += end
            if line == _CRLF:
                self._end_message()
            elif not _TRAILER.fullmatch(line) or self._trailer_bytes > MAX_HEAD_BYTES:
                raise httptools.HttpParserError("no trailer")
            return True
        if (found := _CHUNK_SIZE.fullmatch(line)) is None:
            raise httptools.HttpParserError("no size of a chunk")
        if size := int(found[1], 16):
            self._part, self._left = _CHUNK, size + len(_CRLF)
            self._tiny_chunks += 1 if size < _TINY else -1
            if self._tiny_chunks > _MOST_TINY:
                raise InvalidRequest(
                    f"a body has at most {_MOST_TINY} chunks of less than {_TINY} bytes"
                )
        else:
            self._part, self._trailer_bytes = _TRAILERS, 0
        return True

    def _take_chunk(self) -> bool:
        arrived = min(self._left - len(_CRLF), len(self._read))
        if arrived > 0:
            self.on_body(bytes(memoryview(self._read)[:arrived]))
            del self._read[:arrived]
            self._left -= arrived
        if self._left > len(_CRLF) or len(self._read) < self._left:
            return False
        if not self._read.startswith(_CRLF):
            raise httptools.HttpParserError("no end of a chunk")
        del self._read[: len(_CRLF)]
        self._part = _SIZE
        return True

    def _end_message(self) -> None:
        super().on_message_complete()
        if self._bounds.draining() and not self._read:
            self.cycle.keep_alive = False
        self._part = _NOTHING if self._is_last else _HEAD
        if self._lingers:
            self.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, behind the answers before them; read nothing more."""
        self._part = _NOTHING
        self._read.clear()
        self._end_head()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.close()
                return
        client = None if self.client is None else self.client[0]
        call = Call(self._traffic, "-", "-", client, lookup({}))
        body = orjson.dumps({"error": msg})
        lines = [STATUS_LINE[400], b"content-type: application/json\r\n"]
        lines += (b"%s: %s\r\n" % header for header in self.server_state.default_headers)
        lines.append(b"%s: %s\r\n" % (REQUEST_ID_HEADER.encode(), call.id.encode()))
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join((*lines, body)))
        call.end(400, len(body))
        self._linger()

    def on_response_complete(self) -> None:
        """Begin the next request, or wait for it with a time limit."""
        super().on_response_complete()
        self._continue()

    def close_behind_answer(self) -> None:
        """Close the connection behind the last answer, once the client has sent its body."""
        self._is_last = True
        if self._part in (_HEAD, _NOTHING):
            self._part = _NOTHING
            self._read.clear()
            self.close()
        else:
            self._linger()

    def _linger(self) -> None:
        # Closing now would break the connection while most clients still send.
        self._lingers = True
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.close)

    def close(self) -> None:
        """Close after all that was written is sent, or the client reads nothing more."""
        self.transport.close()
        self._watch_reader()

    def pause_writing(self) -> None:
        """Pause: the client reads its answers too slowly."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on: nearly all that was written is sent."""
        super().resume_writing()
        self._end_reader()
        self._continue()

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._reading is None and self._unsent:
            self._reading = self.loop.call_later(self._bounds.patience_s, self._look)

    def _look(self) -> None:
        self._reading = None
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_reader()
        else:
            # A normal close would wait for the client.
            self.transport.abort()

    def _end_reader(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End what waits for the client."""
        self._end_head()
        self._end_reader()
        self._read.clear()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _asks_for_socket(head: bytes) -> bool:
    """Return True for the request of RFC 6455; others get what is there for plain requests."""
    line = head[: head.index(_CRLF)]
    is_new = line.startswith(b"GET ") and line.endswith(b"1.1")
    return is_new and bool(_SOCKET.search(head) and _SOCKET_VERSION.search(head))


class _BehindAnswer:
    """The transport of answers: heads go with their bodies, and it closes when all can be read."""

    __slots__ = ("_begun", "_connection", "_head", "_transport", "is_closing")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection, self._transport = connection, transport
        self.is_closing = transport.is_closing
        self._begun: RequestResponseCycle | None = None
        self._head = b""

    def write(self, data: bytes) -> None:
        cycle = self._connection.cycle
        if cycle.response_started and self._begun is not cycle:
            # Each write is a call of the system, which costs as much as to route a request.
            self._begun, self._head = cycle, data
            self._connection.loop.call_soon(self.flush)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._connection.close_behind_answer()


def _is_idle(connection: object) -> bool:
    return isinstance(connection, Connection) and connection.is_idle
