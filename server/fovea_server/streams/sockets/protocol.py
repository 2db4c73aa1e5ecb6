"""uvicorn's WebSocket protocol with limits for memory, time and fairness."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.streams import StreamReader

from fovea_preprocess.errors import QueueFull
from fovea_server.byte_budget import SLOWEST, too_slow
from fovea_server.streams.sockets.socket import RESTART, SocketLimits

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame

PING_S = 20.0

_LOOK_S = 1.0
# Timeouts in seconds after which the server closes the connection, if the client does not: after a
# rejected message, after a conversation, and when the server stops.
_LINGER_S, _CLOSE_S, _LAST_S = 3.0, 5.0, 2.0
# Number of bytes that are parsed at once beyond the current payload, and number of frames that are
# parsed per turn. Both are small, so that a client cannot block the event loop with thousands of
# pings or one-byte pieces.
_SLICE = 512
_FRAMES, _REST_S = 64, 0.01
_MAX_REASON = 120
# Largest number of unsent bytes in the kernel. By default, the kernel would buffer megabytes that
# no memory budget counts. The server would notice a client that does not read only after megabytes
# of responses.
_MOST_UNSENT = 65_536

_INVALID_TEXT, _TOO_SLOW, _TRY_LATER = 1007, 1008, 1013


class _Reader(StreamReader):
    """Stores the number of bytes that the current part of a frame needs; 0 between frames."""

    wanted = 0

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        self.wanted = n
        data = yield from super().read_exact(n)
        self.wanted = 0
        return data


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that is read only as fast as the application takes its messages.

    uvicorn limits only the size of a message. This class also counts the bytes of arriving messages
    in the memory budget, until the application takes the messages. Close code 1013 means that the
    budget is full. Code 1008 means that a message arrives too slowly. A client that does not read
    is disconnected. When the server stops, the application receives code 1012. It then answers its
    messages before it closes the WebSocket.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: SocketLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.ping_interval = self.ping_timeout = PING_S
        self.close_timeout = _CLOSE_S
        self._limits, self._patience_s = limits, limits.patience_s
        self._reader = self.conn.reader = _Reader()
        self.conn.parser = self.conn.parse()
        next(self.conn.parser)
        self._unparsed = bytearray()
        self._waiting = 0
        """Number of bytes of messages that the application has not taken."""
        self._held = self._unread = 0
        """Numbers of bytes in the memory budget: of messages, and of responses that the client has
        not read.
        """
        self._last_unread = 0
        self._resting = self._stopping = self._failed = False
        now = self.loop.time()
        self._read_at = now
        """Time at which the client has read bytes for the last time."""
        self._window = now, 0
        """Time of the last check of the arriving message's speed, and the number of its bytes at
        that time.
        """
        self._timer = self.loop.call_later(_LOOK_S, self._look)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the number of bytes that the kernel buffers."""
        super().connection_made(transport)
        line = transport.get_extra_info("socket")
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT)

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Store received bytes, and parse them if the application accepts messages."""
        if not self._failed:
            self._unparsed += data
            self._advance()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message.

        After this call, the application counts the bytes of the message.
        """
        event = await super().receive()
        if self.queue.empty():
            self._waiting = 0
        self._advance()
        return event

    @property
    def _takes_more(self) -> bool:
        # After the request's head, read no further bytes until the response was sent. Later, read
        # only while the application takes messages.
        ready = self.handshake_complete or not self.handshake_initiated
        waits = not self.close_sent and (self.read_paused or self._stopping)
        return (
            ready and self.writable.is_set() and not (waits or self._resting or self.disconnected)
        )

    def _advance(self) -> None:
        frames = 0
        while self._unparsed and self._takes_more and not self._failed:
            size = max(_SLICE, self._reader.wanted - len(self._reader.buffer))
            piece = self._unparsed[:size]
            del self._unparsed[:size]
            self.conn.receive_data(piece)
            frames += len(self.conn.events)
            if self.conn.parser_exc is not None:
                self.handle_parser_exception()
            elif self.conn.handshake_exc is not None and not self.handshake_initiated:
                self._refuse_head()
            else:
                self.handle_events()
            if frames >= _FRAMES and self._unparsed:
                self._rest()
        self._count()
        # Override uvicorn's decision to read, because uvicorn does not consider all of these
        # conditions.
        wanted = self._takes_more and not self._unparsed
        if wanted != self.transport.is_reading() and not self.transport.is_closing():
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def _rest(self) -> None:
        """Let the event loop run other tasks.

        The pause is longer if more clients send many frames.
        """
        self._resting = True
        self._limits.resting += 1
        self.loop.call_later(_REST_S * self._limits.resting, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._limits.resting -= 1
        self._advance()

    def _count(self) -> None:
        """Update the bytes of messages in the memory budget.

        If they exceed it, close the WebSocket.
        """
        pieces = self._unparsed, self._reader.buffer, *self.frames
        counts = self.handshake_complete and not self.disconnected
        now = sum(map(len, pieces)) + self._waiting if counts else 0
        more = now - self._held
        try:
            if more > 0:
                self._limits.budget.take(more)
            elif more:
                self._limits.budget.give_back(-more)
            self._held = now
        except QueueFull as full:
            self._fail(_TRY_LATER, str(full))

    def handle_cont(self, event: Frame) -> None:
        """Append a piece of a message at once.

        A list of one-byte pieces would take 60 times their size.
        """
        whole = cast("bytes | bytearray", self.frames[0])
        whole = whole if isinstance(whole, bytearray) else bytearray(whole)
        whole += event.data
        self.frames = [whole]  # type: ignore[list-item]
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Queue a message for the application."""
        size = sum(map(len, self.frames))
        if self.curr_msg_data_type == "text":
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                # Check the text here, because uvicorn would log the error with a traceback.
                self._fail(_INVALID_TEXT, "the text is not UTF-8")
                return
        super().send_receive_event_to_app()
        self._waiting += 0 if self.close_sent else size
        self._window = self.loop.time(), 0

    # Sending

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message. If the client does not read, wait."""
        # Raise the error here, because uvicorn rejects every message in this state, and reports the
        # first one as an error of the application.
        if self._failed or self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent:
            # Without this line, uvicorn would log a rejected request as an error of the
            # application.
            self.handshake_complete = True
        if message["type"] == "websocket.close":
            self.loop.call_later(self.close_timeout, self.transport.abort)
        if message["type"] != "websocket.send":
            self._advance()

    def pause_writing(self) -> None:
        """Stop reading, because the client does not read.

        Otherwise answers to its pings would fill memory.
        """
        super().pause_writing()
        self._count_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue to read after nearly all bytes are sent."""
        super().resume_writing()
        self._count_unread(0)
        # The client has read. Store this now, because new responses may fill the buffer before the
        # next check.
        self._read_at = self.loop.time()
        # Call `_advance` later, because `_advance` itself may have caused this call.
        self.loop.call_soon(self._advance)

    def _count_unread(self, size: int) -> None:
        self._limits.budget.count_answer(size - self._unread)
        self._unread = size

    # Timeouts

    def _look(self) -> None:
        """Check the speed of the client every second."""
        self._timer = self.loop.call_later(_LOOK_S, self._look)
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        if not unread or unread < self._last_unread:
            self._read_at = now
        self._last_unread = unread
        if now - self._read_at > self._patience_s:
            self.transport.abort()
            return
        begun, size = self._window
        came = sum(map(len, (self._reader.buffer, *self.frames)))
        if not self._arriving or self._stopping or not self.writable.is_set():
            self._window = now, came
        elif now - begun > self._patience_s:
            self._window = now, came
            if came - size < SLOWEST * self._patience_s:
                self._fail(_TOO_SLOW, str(too_slow(self._patience_s, "message")))

    @property
    def _arriving(self) -> bool:
        """Return whether a message is incomplete.

        Control frames between its pieces do not matter.
        """
        return bool(self.frames) or self._reader.wanted > 0

    def keepalive_timeout(self) -> None:
        """Close the connection because a pong is missing.

        If the pong may be behind bytes that the server has not read, wait again.
        """
        if self._arriving or not self.transport.is_reading():
            self.pong_timer = self.loop.call_later(PING_S, self.keepalive_timeout)
        else:
            self._failed = True
            super().keepalive_timeout()

    # Closing

    def shutdown(self) -> None:
        """Accept no further messages.

        The application answers its messages and closes the WebSocket.
        """
        if self.close_sent:
            super().shutdown()
            self.loop.call_later(_LAST_S, self.transport.abort)
            return
        self.stop_keepalive()
        self._stopping = True
        self.close_timeout = _LAST_S
        self._patience_s = min(_LAST_S, self._patience_s)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": RESTART})

    def _fail(self, code: int, reason: str) -> None:
        if not self._failed:
            # A close frame has no room for a longer reason.
            self.conn.fail(code, reason.encode()[:_MAX_REASON].decode(errors="ignore"))
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Close the WebSocket, and drop further bytes from the client.

        The client may read the reason only after it has sent these bytes, so the connection stays
        open for some seconds.
        """
        sent = self.conn.close_sent
        assert sent is not None, "it was open"
        self._failed = self.close_sent = True
        self.stop_keepalive()
        event = {"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason}
        self.queue.put_nowait(cast("ASGIReceiveEvent", event))
        self._drop()
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _refuse_head(self) -> None:
        """Reject a request head that is too long for `websockets`. uvicorn would wait forever."""
        self._failed = True
        self._drop()
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all bytes in the memory budget."""
        super().connection_lost(exc)
        self._timer.cancel()
        self._waiting = 0
        self._drop()
        self._count_unread(0)

    def _drop(self) -> None:
        self._unparsed.clear()
        self._reader.discard()
        self.frames = []
        self._count()
