"""One request and its answer, on a connection."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fovea_connection.body import LARGE_BODY, unset_buffer
from fovea_preprocess.errors import FoveaError, InvalidRequest, QueueFull
from fovea_server.byte_budget import SLOWEST, too_slow
from fovea_server.http.front import ID_HEADER, LARGE_ANSWER, Front
from fovea_server.http.messages import Buffer, Request, Response, Successor
from fovea_server.http.receive import late, stopped
from fovea_server.http.v2.answers import refusal
from fovea_server.traffic.call import CLIENT_LEFT

if TYPE_CHECKING:
    from fovea_connection.protocol import ServerProtocol

log = logging.getLogger(__name__)

_ID = b"\r\n%s: " % ID_HEADER


class Arrival(Enum):
    """The state of a request's arrival."""

    UNDER_WAY = auto()
    WHOLE = auto()
    REFUSED = auto()
    """Incomplete, and the rest is dropped."""


class Turn(Enum):
    """The state of an exchange in the order of its connection."""

    BEHIND = auto()
    """Another one is to be answered first."""
    NOW = auto()
    RUNNING = auto()
    ANSWERED = auto()
    LOST = auto()
    """The client went away before it was answered."""


class Exchange:
    """Collects a body, gets the request answered, and writes the answer.

    Plain calls and one task in the place of ASGI's messages.

    Args:
        request: admitted by `front`.
        keep_alive: the connection stays open after it.
    """

    def __init__(
        self,
        front: Front,
        connection: ServerProtocol,
        request: Request,
        keep_alive: bool,
    ) -> None:
        self.keep_alive = keep_alive
        self._front = front
        self._connection = connection
        self._limit = front.service.settings.http_max_input_size
        self._request = request
        request.hold = self._hold
        self._arrival, self._turn = Arrival.UNDER_WAY, Turn.BEHIND
        self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        # The parser has refused anything but a number.
        self._declared = declared = int(request.headers.get(b"content-length", b"0"))
        if request.answer is not None and not front.keeps_refused:
            self._stop_reading()
        elif declared > self._limit:
            self.give_up(front.too_large(declared))

    @property
    def response_complete(self) -> bool:
        """True when nothing more will be written."""
        return self._turn is Turn.ANSWERED or self._turn is Turn.LOST

    def start(self) -> None:
        """Begin: the exchanges before it on the connection are over."""
        self._turn = Turn.NOW
        expected = self._request.headers.get(b"expect", b"").lower()
        if expected == b"100-continue" and self._arrival is Arrival.UNDER_WAY:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._go_on()

    def wait_for_body(self) -> None:
        """Start the time limit for the rest of the body."""
        if self._timer is None and self._arrival is Arrival.UNDER_WAY:
            self._wait_from(self._held)

    def _wait_from(self, held: int) -> None:
        timeout_s, request = self._front.service.settings.body_timeout_s, self._request
        call_later = self._connection.loop.call_later
        if request.timeout_s is not None:
            left = request.call.began + request.timeout_s - time.monotonic()
            if left < timeout_s:
                self._timer = call_later(left, self.give_up, late(request.timeout_s))
                return
        self._timer = call_later(timeout_s, self._check_speed, held, timeout_s)

    def _check_speed(self, held: int, timeout_s: float) -> None:
        if self._held - held >= SLOWEST * timeout_s:
            self._wait_from(self._held)
        else:
            self.give_up(too_slow(timeout_s))

    def stop_waiting(self) -> None:
        """Stop the time limit for the rest of the body."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_arrival(self) -> None:
        """Stop all that waits for the rest of the body."""
        self.stop_waiting()
        if self._stopping is not None:
            self._stopping.cancel()

    def on_shutdown(self) -> None:
        """Give up an incomplete body when uvicorn cancels what outlasts the time to exit."""

        async def rest() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.give_up(stopped())

        if self._arrival is Arrival.UNDER_WAY:
            self._stopping = self._connection.loop.create_task(rest())
            self._connection.tasks.add(self._stopping)
            self._stopping.add_done_callback(self._connection.tasks.discard)

    def on_body(self, piece: bytes) -> int:
        """Add a piece of the body; return the number of bytes that are held."""
        if self.wants(len(piece)):
            self._add(piece)
        return self._held

    def open_buffer(self) -> memoryview | None:
        """Move the body to a buffer of its size; return the part that is missing.

        None if little is missing, or its size is not known, or another exchange is to be answered.
        """
        body = self._request.body
        if self._arrival is not Arrival.UNDER_WAY or self._turn is not Turn.NOW:
            return None
        if self._declared - len(body) < LARGE_BODY or self._request.answer is not None:
            return None
        buffer = unset_buffer(self._declared)
        buffer[: len(body)] = body
        self._request.body = buffer
        return memoryview(buffer)[len(body) :]

    def wants(self, size: int) -> bool:
        """Count bytes of the body that have arrived; return False if they are dropped."""
        if self._arrival is not Arrival.UNDER_WAY or self._request.answer is not None:
            return False
        try:
            self._hold(size)
            if self._held > self._limit:
                raise self._front.too_large(None)
        except FoveaError as error:
            self.give_up(error)
            return False
        return True

    def on_whole(self) -> None:
        """End the body."""
        self._end_arrival()
        if self._arrival is Arrival.REFUSED:
            if self._turn is Turn.ANSWERED:
                self._connection.close()
            return
        self._arrival = Arrival.WHOLE
        self._go_on()

    def on_lost(self) -> None:
        """Cancel the request: the client has left."""
        if self._turn is not Turn.ANSWERED:
            self._turn = Turn.LOST
            self._request.call.end(CLIENT_LEFT)
        self._end_arrival()
        if self._task is not None:
            self._task.cancel()
        else:
            self._let_go()

    def give_up(self, error: FoveaError) -> None:
        """Refuse a request whose body is incomplete; the rest of it is dropped."""
        if self._arrival is not Arrival.UNDER_WAY:
            return
        if self._request.answer is None:
            self._request.answer = self._front.error_answer(error)
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._arrival, self.keep_alive = Arrival.REFUSED, False
        self._let_go()
        self._end_arrival()
        self._go_on()

    def _go_on(self) -> None:
        if self._turn is not Turn.NOW or self._arrival is Arrival.UNDER_WAY:
            return
        if self._request.answer is not None:
            self._write(self._request.answer)
            return
        self._turn = Turn.RUNNING
        self._task = self._connection.loop.create_task(self._run())
        self._connection.tasks.add(self._task)
        self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        self._request.call.enter()
        try:
            answer = await self._front.answer(self._request)
        except asyncio.CancelledError:
            # Of the server's tasks, uvicorn cancels those that outlast the time to exit.
            answer = self._front.error_answer(stopped())
        self._let_go()
        if self._turn is Turn.RUNNING:
            self._write(answer)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._connection.tasks.discard(task)
        # A task that is cancelled before its first step releases nothing itself.
        self._let_go()
        # It refers to this exchange: a circle, which only the garbage collector would free.
        del self._request.hold
        if not task.cancelled() and task.exception() is not None:
            call = self._request.call
            about = (call.method, call.shown)
            log.error("%s %r", *about, exc_info=task.exception(), extra={"id": call.id})
            self._connection.transport.abort()

    def _add(self, piece: bytes) -> None:
        request = self._request
        if not request.body:
            # Most bodies are a single piece, which is not copied.
            request.body = piece
            return
        if isinstance(request.body, bytes):
            request.body = bytearray(request.body)
        # A bytearray grows by a share of its size, so it is seldom copied.
        request.body += piece

    def _hold(self, size: int) -> None:
        self._front.budget.take(size)
        self._held += size

    def _let_go(self) -> None:
        self._request.body = b""
        # A large answer that is about to be written is counted again by its connection at once.
        self._request.reservation.release()
        self._front.budget.give_back(self._held)
        self._held = 0

    def _write(self, answer: Response) -> None:
        if answer.successor is not None:
            try:
                self._succeed(answer.successor)
                return
            except InvalidRequest as error:
                self.keep_alive, answer = False, self._front.error_answer(error)
        size, self._turn = sum(map(len, answer.body)), Turn.ANSWERED
        # While the server drains, the client of a connection without further requests is to leave.
        self.keep_alive &= not self._front.service.models.draining or bool(
            self._connection.pipeline
        )
        pieces: list[Buffer] = [STATUS_LINE[answer.status]]
        # The date, which uvicorn renews.
        for name, value in self._connection.server_state.default_headers:
            pieces += (name, b": ", value, b"\r\n")
        pieces += (b"content-type: ", answer.media_type, _ID, self._request.call.id.encode())
        for name, value in (*answer.headers, *self._front.cors.headers(self._request.headers)):
            pieces += (b"\r\n", name, b": ", value)
        pieces.append(b"\r\ncontent-length: %d\r\n" % size)
        pieces.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        sent = 0 if self._request.call.method == "HEAD" else size
        if sent:
            pieces += answer.body
        if size < LARGE_ANSWER:
            self._connection.transport.write(b"".join(pieces))
        else:
            try:
                self._connection.write_large(pieces, size)
            except QueueFull as error:
                self._write(self._front.error_answer(error))
                return
        self._request.call.end(answer.status, sent, answer.error)
        if self.keep_alive:
            self._connection.on_response_complete()
        elif self._arrival is Arrival.WHOLE:
            self._connection.close()
        else:
            # Closing now would break the connection while most clients still send.
            self._connection.linger()

    def _succeed(self, successor: Successor) -> None:
        if not self.keep_alive:
            raise InvalidRequest(
                "this connection closes behind its answer, and becomes no other one: the request "
                "is of HTTP/1.0, or says `Connection: close`, or the server stops"
            )
        self._connection.succeed(successor)
        self._turn = Turn.ANSWERED


class Refusal(Exchange):
    """Answers bytes that are no valid request, as the last answer of its connection."""

    def __init__(self, front: Front, connection: ServerProtocol, message: str) -> None:
        request = front.begin("-", "-", {}, connection.client)
        request.answer = refusal(400, message)
        super().__init__(front, connection, request, keep_alive=False)
        self._arrival = Arrival.WHOLE
