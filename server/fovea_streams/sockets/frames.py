"""Frames of a camera over a WebSocket: each is answered as by predict, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import (
    Forbidden,
    FoveaError,
    Unauthenticated,
)
from fovea_server.dataplane.service import Service
from fovea_server.error_status import http_status
from fovea_server.http.v1.answers import boxes_json
from fovea_server.http.v1.body import empty
from fovea_streams.sockets.assembly import Message, no_image
from fovea_streams.sockets.first_key import key_in
from fovea_streams.sockets.socket import Socket, SocketEnded, error_text

log = logging.getLogger(__name__)

IN_FLIGHT = 8
"""Frames of a connection that may wait for their answers; no more are read."""
IDLE_S = 300.0

_OPERATION = "WS /v1/models/{model}/stream"


@dataclass(frozen=True, slots=True)
class FrameHandler:
    """Answers the frames of a client; `timeout_s` is of each, and `ended` is called at the end."""

    service: Service
    model: str
    version: int | None
    options: PredictOptions
    timeout_s: float | None
    ended: Callable[[], None]

    async def __call__(self, socket: Socket) -> str:
        """Answer frames until the client leaves or the server stops."""
        hello = {
            "model": self.model,
            "in_flight": IN_FLIGHT,
            "max_bytes": self.service.settings.http_max_input_size,
            **({} if self.options.track is None else {"stream_id": self.options.stream_id}),
        }
        try:
            await socket.send(orjson.dumps(hello))
            return await _Frames(self, socket).run()
        finally:
            self.ended()


class _Frames:
    """Runs the frames of a connection concurrently, and answers them in order."""

    def __init__(self, asked: FrameHandler, socket: Socket) -> None:
        self._asked, self._socket = asked, socket
        self._credits = asyncio.Semaphore(IN_FLIGHT)
        self._begun: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._reason = ""
        self._ended: FoveaError | None = None
        """The error of a key that holds no more; it ends the connection."""

    async def run(self) -> str:
        reader = asyncio.create_task(self._read())
        try:
            while (task := await self._begun.get()) is not None:
                await self._socket.send(await task)
                self._credits.release()
                if self._ended is not None:
                    raise self._ended
            await reader
            return self._reason
        finally:
            for running in (reader, *self._tasks):
                running.cancel()

    async def _read(self) -> None:
        number = 0
        try:
            while True:
                await self._credits.acquire()
                async with asyncio.timeout(IDLE_S):
                    message = await self._socket.receive()
                if isinstance(message.content, str) and key_in(message.content) is not None:
                    # Of a page that sends it to every server.
                    self._socket.give_back(message)
                    self._credits.release()
                    continue
                # Tasks begin in their order, and so do the frames of a tracker.
                task = asyncio.create_task(self._answer(number, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._begun.put_nowait(task)
                number += 1
        except SocketEnded:
            pass
        except TimeoutError:
            self._reason = f"no frame came for {IDLE_S:g} s"
        finally:
            self._begun.put_nowait(None)

    async def _answer(self, number: int, message: Message) -> bytes:
        asked, failed = self._asked, None
        try:
            part = self._socket.call.part()
        except (Unauthenticated, Forbidden) as ended:
            part, message.content, self._ended = (
                self._socket.call.part(admitted=False),
                ended,
                ended,
            )
        except FoveaError as error:
            part, message.content = self._socket.call.part(admitted=False), error
        part.model = asked.model
        part.infers(_OPERATION)
        part.enter()
        try:
            content = message.content
            if isinstance(content, FoveaError):
                raise content
            if isinstance(content, str):
                raise no_image()
            if not content:
                raise empty()
            plane = asked.service.plane
            # Looked up for each frame: it may have been loaded again.
            model = plane.models.get(asked.model, asked.version)
            given = [content], asked.options, asked.timeout_s, ""
            answer = await boxes_json(plane, model, asked.version, *given)
            return b'{"frame":%d,' % number + answer[1:]
        except FoveaError as error:
            failed = error
        except Exception:
            log.exception("a frame failed", extra={"id": part.id})
            failed = FoveaError("an internal error; the server's log has the details")
        finally:
            self._socket.give_back(message)
            part.measure(200 if failed is None else http_status(failed), failed)
        return error_text(failed, frame=number)
