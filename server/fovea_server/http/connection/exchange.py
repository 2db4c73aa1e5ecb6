"""One request of the v2 protocol and its answer, on a connection."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fovea_preprocess.errors import BodyTimeout, FoveaError, QueueFull, ShuttingDown
from fovea_server.http.v2.compression import too_large
from fovea_server.http.v2.front import CLIENT_LEFT, LARGE_ANSWER, Front
from fovea_server.http.v2.messages import Answer, Buffer, Request, error_answer, refusal
from fovea_server.http.v2.routing import Route
from fovea_server.log_lines import REQUEST_ID
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.request_id import HEADER, request_id

log = logging.getLogger(__name__)

_ID_HEADER = HEADER.encode()


class Connection(Protocol):
    """Carries exchanges, one after the other."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]
    client: tuple[str, int] | None

    def write_large(self, pieces: list[Buffer], size: int) -> None:
        """Write pieces, and count their bytes until they are sent.

        Raises:
            QueueFull: too much is held already.
        """
        ...

    def on_response_complete(self) -> None:
        """Start the next exchange."""
        ...

    def close(self) -> None:
        """Close after all that was written is sent."""
        ...

    def linger(self) -> None:
        """Close, but read on for a while: the client reads the answer only after sending."""
        ...


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

    Plain calls and one task instead of ASGI's messages: that halves the cost of a small request.

    Args:
        target: path and query, as sent.
        headers: names in lower case.
        keep_alive: the connection stays open after it.
    """

    def __init__(
        self,
        front: Front,
        connection: Connection,
        method: str,
        target: bytes,
        headers: dict[bytes, bytes],
        keep_alive: bool,
    ) -> None:
        self.keep_alive = keep_alive
        self._began = time.monotonic()
        given = headers.get(_ID_HEADER)
        self._id = request_id(None if given is None else given.decode("latin-1"))
        self._front = front
        self._connection = connection
        self._method, self._target = method, target
        self._expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self._arrival, self._turn = Arrival.UNDER_WAY, Turn.BEHIND
        self._held = 0
        self._body: bytes | bytearray = b""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        path = target.partition(b"?")[0].decode("latin-1")
        self._found = self._todo = front.admit(method, path, headers, self._hold)
        # The parser has refused anything but a number.
        declared = int(headers.get(b"content-length", b"0"))
        limit = front.service.settings.http_max_input_size
        if declared > limit:
            self.give_up(too_large(declared, limit))

    @property
    def response_complete(self) -> bool:
        """True when nothing more will be written."""
        return self._turn is Turn.ANSWERED or self._turn is Turn.LOST

    def start(self) -> None:
        """Begin: the exchanges before it on the connection are over."""
        self._turn = Turn.NOW
        if self._expects and self._arrival is Arrival.UNDER_WAY:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._go_on()

    def wait_for_body(self) -> None:
        """Start the time limit for the rest of the body."""
        if self._timer is None and self._arrival is Arrival.UNDER_WAY:
            timeout_s = self._front.service.settings.body_timeout_s
            late = BodyTimeout(f"the body did not arrive within {timeout_s:g} s")
            self._timer = self._connection.loop.call_later(timeout_s, self.give_up, late)

    def stop_waiting(self) -> None:
        """Stop the time limit for the rest of the body."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_body(self, piece: bytes) -> int:
        """Add a piece of the body.

        Returns:
            Number of bytes that are held.
        """
        if self._arrival is Arrival.UNDER_WAY and not isinstance(self._todo, Answer):
            try:
                self._hold(len(piece))
                limit = self._front.service.settings.http_max_input_size
                if self._held > limit:
                    raise too_large(f"over {limit}", limit)
            except FoveaError as error:
                self.give_up(error)
            else:
                self._add(piece)
        return self._held

    def on_whole(self) -> None:
        """End the body."""
        self.stop_waiting()
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
            self._report(CLIENT_LEFT, 0, None)
        self.stop_waiting()
        if self._task is not None:
            self._task.cancel()
        else:
            self._let_go()

    def give_up(self, error: FoveaError) -> None:
        """Refuse a request whose body is incomplete; the rest of it is dropped."""
        if self._arrival is not Arrival.UNDER_WAY:
            return
        if not isinstance(self._todo, Answer):
            self._todo = error_answer(error)
        self._arrival, self.keep_alive = Arrival.REFUSED, False
        self._let_go()
        self.stop_waiting()
        self._go_on()

    def _go_on(self) -> None:
        if self._turn is not Turn.NOW or self._arrival is Arrival.UNDER_WAY:
            return
        if isinstance(self._todo, Answer):
            self._write(self._todo)
            return
        self._turn = Turn.RUNNING
        self._task = self._connection.loop.create_task(self._run(*self._todo))
        self._connection.tasks.add(self._task)
        self._task.add_done_callback(self._end)

    async def _run(self, route: Route, request: Request) -> None:
        REQUEST_ID.set(self._id)
        request.body, self._body = self._body, b""
        try:
            answer = await self._front.answer(route, request)
        except asyncio.CancelledError:
            # Of the server's tasks, uvicorn cancels those that outlast the time to exit.
            answer = error_answer(ShuttingDown("the server stopped before the answer was there"))
        self._let_go()
        if self._turn is Turn.RUNNING:
            self._write(answer)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._connection.tasks.discard(task)
        # A task that is cancelled before its first step releases nothing itself.
        self._let_go()
        if not task.cancelled() and task.exception() is not None:
            about = (self._method, self._target)
            log.error("%s %r", *about, exc_info=task.exception(), extra={"id": self._id})
            self._connection.transport.abort()

    def _add(self, piece: bytes) -> None:
        if not self._body:
            # Most bodies are a single piece, which is not copied.
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        # A bytearray grows by a share of its size, so it is seldom copied.
        self._body += piece

    def _hold(self, size: int) -> None:
        self._front.budget.take(size)
        self._held += size

    def _let_go(self) -> None:
        self._body = b""
        self._front.budget.give_back(self._held)
        self._held = 0

    def _write(self, answer: Answer) -> None:
        size = sum(map(len, answer.body))
        self._turn = Turn.ANSWERED
        pieces: list[Buffer] = [STATUS_LINE[answer.status], b"content-type: ", answer.media_type]
        pieces += (b"\r\nx-request-id: ", self._id.encode())
        for name, value in answer.headers:
            pieces += (b"\r\n", name, b": ", value)
        pieces.append(b"\r\ncontent-length: %d\r\n" % size)
        pieces.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self._method != "HEAD":
            pieces += answer.body
        if size < LARGE_ANSWER:
            self._connection.transport.write(b"".join(pieces))
        else:
            try:
                self._connection.write_large(pieces, size)
            except QueueFull as error:
                self._write(error_answer(error))
                return
        self._report(answer.status, size if self._method != "HEAD" else 0, answer.error)
        if self.keep_alive:
            self._connection.on_response_complete()
        elif self._arrival is Arrival.WHOLE:
            self._connection.close()
        else:
            # Closing now would break the connection while most clients still send.
            self._connection.linger()

    def _report(self, status: int, size: int, error: FoveaError | None) -> None:
        """Log and count the request, once it is answered or its client has left."""
        peer = self._connection.client
        client, target = peer[0] if peer else "-", self._target.decode("latin-1")
        access = Access(client, self._method, target, "", status, size, self._began, self._id)
        self._front.report(self._found, access, error)


class Refusal(Exchange):
    """Answers bytes that are no valid request, as the last answer of its connection."""

    def __init__(self, front: Front, connection: Connection, message: str) -> None:
        super().__init__(front, connection, "-", b"-", {}, keep_alive=False)
        self._todo = refusal(400, message)
        self._arrival = Arrival.WHOLE
