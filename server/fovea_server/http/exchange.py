"""One request of the v2 protocol and its answer, on a connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fovea_preprocess.errors import BodyTimeout, FoveaError, ShuttingDown
from fovea_server.http.body import Body
from fovea_server.http.compression import too_large
from fovea_server.http.front import Front
from fovea_server.http.messages import Answer, Buffer, Request, error_answer
from fovea_server.http.routing import Route
from fovea_server.logs import requests as log

# Below this one write of a copy is cheaper than several.
_SMALL = 65_536
# How long a client may go on sending what is refused.
_LINGER_S = 3.0


class Connection(Protocol):
    """What carries exchanges, one after the other."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]

    def on_response_complete(self) -> None:
        """The next exchange may start."""
        ...


class Exchange:
    """Collects a body, has the request answered, writes the answer.

    Plain calls and one task instead of ASGI's messages: that halves the cost of a small request.

    Args:
        front: answers.
        connection: carries the exchange.
        method: in capitals.
        target: path and query, as sent.
        headers: names in lower case.
        keep_alive: whether the connection is for more exchanges.

    Attributes:
        response_complete: the answer is written.
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
        self.response_complete = False
        self.keep_alive = keep_alive
        self._front = front
        self._connection = connection
        self._method, self._target = method, target
        self._held = 0
        self._whole = self._may_start = self._refused = self._lost = False
        self._expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        path = target.partition(b"?")[0].decode("latin-1")
        admitted = front.admit(method, path, headers)
        self._admitted: tuple[Route, Request] | None = None
        self._answer: Answer | None = None
        if isinstance(admitted, Answer):
            self._answer = admitted
        else:
            self._admitted = admitted
        # The parser has refused what is no number.
        declared = int(headers.get(b"content-length", b"0"))
        self._body = Body(declared)
        limit = front.service.settings.http_max_input_size
        if declared > limit:
            self._give_up(too_large(declared, limit))

    def start(self) -> None:
        """Its turn has come: what was before it on the connection is answered."""
        self._may_start = True
        if self._expects and not (self._whole or self._refused):
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._go_on()

    def wait_for_body(self) -> None:
        """There is nothing more to read now; the rest must come in time."""
        if self._timer is None and not (self._whole or self.response_complete):
            timeout_s = self._front.service.settings.body_timeout_s
            late = BodyTimeout(f"the body did not arrive within {timeout_s:g} s")
            self._timer = self._connection.loop.call_later(timeout_s, self._give_up, late)

    def on_body(self, piece: bytes) -> None:
        """More of the body."""
        if self._answer is not None:
            return
        try:
            self._front.intake.take(len(piece))
            self._held += len(piece)
            limit = self._front.service.settings.http_max_input_size
            if self._held > limit:
                raise too_large(f"over {limit}", limit)
        except FoveaError as error:
            self._give_up(error)
            return
        self._body.add(piece)

    def on_whole(self) -> None:
        """All of the body is there."""
        self._whole = True
        self._stop_timer()
        if self._refused and self.response_complete:
            self._connection.transport.close()
        self._go_on()

    def on_lost(self) -> None:
        """The client went away: what is being done for it is given up."""
        self._lost = self.response_complete = True
        self._stop_timer()
        self._let_go()
        if self._task is not None:
            self._task.cancel()

    def _go_on(self) -> None:
        ready = self._whole or self._refused
        if self.response_complete or not (ready and self._may_start):
            return
        if self._answer is not None:
            self._write(self._answer)
            return
        self._task = self._connection.loop.create_task(self._run())
        self._connection.tasks.add(self._task)

    async def _run(self) -> None:
        assert self._admitted is not None, "what was refused has its answer"
        route, request = self._admitted
        request.body = self._body.take()
        try:
            answer = await self._front.answer(route, request)
        except asyncio.CancelledError:
            # Of the server's tasks, uvicorn cancels those that outlast the time to exit.
            answer = error_answer(ShuttingDown("the server stopped before the answer was there"))
        assert self._task is not None, "this runs in it"
        self._connection.tasks.discard(self._task)
        self._let_go()
        if not self._lost:
            self._write(answer)

    def _give_up(self, error: FoveaError) -> None:
        """What is still under way of the body is not for anybody."""
        self._answer = error_answer(error)
        self._refused, self.keep_alive = True, False
        self._body.take()
        self._let_go()
        self._stop_timer()
        self._go_on()

    def _let_go(self) -> None:
        self._front.intake.give_back(self._held)
        self._held = 0

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, answer: Answer) -> None:
        self.response_complete = True
        size = sum(map(len, answer.body))
        pieces: list[Buffer] = [STATUS_LINE[answer.status], b"content-type: ", answer.media_type]
        for name, value in answer.headers:
            pieces += (b"\r\n", name, b": ", value)
        pieces.append(b"\r\ncontent-length: %d\r\n" % size)
        pieces.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        transport = self._connection.transport
        if self._method == "HEAD":
            transport.write(b"".join(pieces))
        elif size < _SMALL:
            transport.write(b"".join([*pieces, *answer.body]))
        else:
            transport.writelines([b"".join(pieces), *answer.body])
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s %d", self._method, self._target.decode("latin-1"), answer.status)
        if self.keep_alive:
            self._connection.on_response_complete()
        elif self._whole:
            transport.close()
        else:
            # Closed now, most clients would see a connection that broke as they sent.
            self._connection.loop.call_later(_LINGER_S, transport.close)
