"""One WebSocket: messages in and out, neither faster than the other side takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import orjson
from websockets.protocol import State

from fovea_preprocess.errors import FoveaError
from fovea_server.byte_budget import ByteBudget, too_slow
from fovea_server.error_status import http_status
from fovea_server.http.messages import Successor
from fovea_server.http.v1.answers import error_json
from fovea_server.traffic.call import Call
from fovea_streams.sockets.assembly import Assembly, Message
from fovea_streams.sockets.patience import LAST_S, Judgement, Patience
from fovea_streams.sockets.wire import Wire

if TYPE_CHECKING:
    from uvicorn.server import ServerState

log = logging.getLogger(__name__)

_TICK_S = 1.0
# A client that sends thousands of pings, or pieces of a few bytes, leaves the loop to others.
_STEPS, _REST_S = 256, 0.03
_CLOSE_S = 5.0
_MOST_REASON = 120


class SocketEnded(Exception):
    """The server is about to stop, or the client has left: no more messages come or go."""


def error_text(error: FoveaError, **head: int) -> bytes:
    """Write an error as /v1 answers it, with what HTTP has in its head."""
    told: dict[str, float] = {**head, "status": http_status(error)}
    if (retry_after_s := getattr(error, "retry_after_s", None)) is not None:
        told["retry_after_s"] = round(retry_after_s, 3)
    return orjson.dumps(told)[:-1] + b"," + error_json(error)[1:]


class Socket(Successor):
    """A connection that was HTTP's; `handler` receives and sends in a task, and says why it ends.

    At most one message waits to be received: then the client is not read, and TCP slows it. A
    client that does not read its answers for `patience_s`, is silent, or sends a message too slowly
    is cut off.

    Attributes:
        call: of the request that began it; ended with the connection.
        ending: the server is about to stop.

    Args:
        answer: the bytes that accept the request.
        most: bytes of a message.
        opened: called with 1 where the connection begins, and with -1 at its end.
    """

    def __init__(
        self,
        wire: Wire,
        answer: bytes,
        call: Call,
        budget: ByteBudget,
        handler: Callable[[Socket], Coroutine[Any, Any, str]],
        *,
        most: int,
        patience_s: float,
        opened: Callable[[int], None],
    ) -> None:
        self.call, self.ending = call, False
        self._wire, self._answer, self._handler = wire, answer, handler
        self._patience_s, self._opened = patience_s, opened
        self._loop = asyncio.get_running_loop()
        self._assembly = Assembly(wire, budget, most)
        self._patience = Patience(patience_s, self._loop.time())
        self._transport: asyncio.Transport
        self._state: ServerState
        self._task: asyncio.Task[None]
        self._timer: asyncio.TimerHandle
        self._news, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._sent = 0
        self._paused = self._resting = self._lost = False

    def begin(self, transport: asyncio.Transport, state: ServerState) -> None:
        """Accept the request, and begin to handle its messages."""
        self._transport, self._state = transport, state
        self._opened(1)
        state.connections.add(self)  # type: ignore[arg-type]
        transport.write(self._answer)
        self._task = self._loop.create_task(self._run())
        state.tasks.add(self._task)
        self._task.add_done_callback(state.tasks.discard)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    async def receive(self) -> Message:
        """Wait for the next message; raises SocketEnded."""
        while self._assembly.message is None or self.ending:
            if self.ending or self._lost:
                raise SocketEnded
            self._news.clear()
            await self._news.wait()
        message, self._assembly.message = self._assembly.message, None
        self._advance()
        return message

    async def send(self, text: bytes) -> None:
        """Send a message of JSON when the client reads; raises SocketEnded."""
        await self._writable.wait()
        if not self._open:
            raise SocketEnded
        self._wire.send_text(text)
        self._sent += len(text)
        self._flush()

    def drop_messages(self) -> None:
        """Drop all that the client sends from now on."""
        self._assembly.dropping = True

    def give_back(self, message: Message) -> None:
        """Count a message as no longer held."""
        self._assembly.give_back(message)

    @property
    def _open(self) -> bool:
        return not self._lost and self._wire.state is State.OPEN

    async def _run(self) -> None:
        self.call.enter()
        code, reason = 1000, ""
        try:
            reason = await self._handler(self)
        except SocketEnded:
            pass
        except FoveaError as error:
            if self._open and self._writable.is_set():
                self._wire.send_text(error_text(error))
            code, reason = 1008, error.code
        except asyncio.CancelledError:
            # uvicorn cancels the tasks that outlast the time to exit.
            pass
        except Exception:
            log.exception("a WebSocket failed", extra={"id": self.call.id})
            code, reason = 1011, "an internal error; the server's log has the details"
        if self.ending:
            code, reason = 1001, "the server stops"
        self._close(code, reason)

    def _close(self, code: int, reason: str) -> None:
        if not self._open:
            return
        self._wire.send_close(code, reason.encode()[:_MOST_REASON].decode(errors="ignore"))
        self.drop_messages()
        self._flush()
        self._advance()
        self._loop.call_later(LAST_S if self.ending else _CLOSE_S, self._transport.abort)

    def _flush(self) -> None:
        if (data := b"".join(self._wire.data_to_send())) and not self._lost:
            self._transport.write(data)

    # What the transport calls

    def data_received(self, data: bytes) -> None:
        """Parse bytes, as far as there is room for a message."""
        self._patience.hear(self._loop.time(), len(data))
        self._assembly.add(data)
        self._advance()

    def pause_writing(self) -> None:
        """Stop: the client reads too slowly, and pings would pile up, too."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on: nearly all is sent."""
        self._writable.set()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all that is under way."""
        self._lost = True
        self._timer.cancel()
        self._task.cancel()
        self._news.set()
        self._writable.set()
        self._assembly.drop()
        self._state.connections.discard(self)
        self._opened(-1)
        self.call.end(101, self._sent)

    def shutdown(self) -> None:
        """Receive nothing more: what was received is answered, and then the connection closes."""
        self.ending = True
        self._news.set()

    @property
    def _has_room(self) -> bool:
        return self._assembly.has_room and self._writable.is_set()

    def _advance(self) -> None:
        """Parse until there is a message, and read the client only while there is none."""
        if self._lost:
            return
        steps = 0
        try:
            while steps < _STEPS and self._has_room and self._assembly.advance():
                steps += 1
        except EOFError:
            self._end()
            return
        if self._assembly.message is not None:
            self._news.set()
        self._flush()
        self._assembly.count()
        if steps == _STEPS and not self._resting:
            self._resting = True
            self._loop.call_later(_REST_S, self._go_on)
        if self._paused == (self._has_room and not self._resting):
            self._paused = not self._paused
            (self._transport.pause_reading if self._paused else self._transport.resume_reading)()

    def _go_on(self) -> None:
        self._resting = False
        self._advance()

    def _end(self) -> None:
        """Close at once: the client has closed, or broken the protocol."""
        self._flush()
        self._lost = True
        self._news.set()
        self._task.cancel()
        self._transport.close()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        judgement = self._patience.judge(
            self._loop.time(),
            self._transport.get_write_buffer_size(),
            arriving=self._assembly.held > 0,
            paused=self._paused,
            ending=self.ending,
        )
        if judgement is Judgement.ABORT:
            self._transport.abort()
        elif judgement is Judgement.REFUSE:
            self._close(1008, str(too_slow(self._patience_s, "message")))
        elif judgement is Judgement.PING and self._open:
            self._wire.send_ping(b"")
            self._flush()
