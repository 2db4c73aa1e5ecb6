"""Conversations over a WebSocket: frames of a client, or events of a stream."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlencode

import orjson
from starlette.websockets import WebSocketDisconnect

from fovea_preprocess.errors import (
    Forbidden,
    FoveaError,
    InvalidOption,
    InvalidRequest,
    QueueFull,
    Unauthenticated,
)
from fovea_server.dataplane.service import Service
from fovea_server.error_status import http_status
from fovea_server.http.v1.answers import boxes_json
from fovea_server.http.v1.body import empty
from fovea_server.http.v1.request_head import query_options, query_values, timeout_of
from fovea_server.streams.events.feed import EventLogs, after_of, kinds_of
from fovea_server.streams.sockets.socket import RESTART, Content, Socket, error_text, key_in
from fovea_server.tracking.tracks import Tracks
from fovea_server.traffic.call import CLIENT_LEFT, Call

log = logging.getLogger(__name__)

IN_FLIGHT = 8
"""Largest number of a client's frames in flight. If it is reached, further frames are not
processed.
"""
IDLE_S = 300.0

_OPERATION = "WS /v1/models/{model}/stream"


class Events:
    """Sends the events of a stream to one client, beginning after the client's last event.

    Args:
        service: the service.
        logs: events of all streams.
        call: request that opened the WebSocket.
        stream: ID of the stream.
        query: query of the URL.

    Raises:
        InvalidOption: a kind of event is unknown.
    """

    kind = "events"

    def __init__(
        self, service: Service, logs: EventLogs, call: Call, stream: str, query: str
    ) -> None:
        self.call, self._service, self._logs, self._stream = call, service, logs, stream
        values = query_values(query)
        self._given = call.header("last-event-id") or values.get("after")
        self._kinds = kinds_of(values.get("kinds", ""))

    def admit(self) -> None:
        """Check the API key, the stream, and the number of the client's last event."""
        for api in ("metadata", "model-repository", "cameras"):
            self._service.authenticator.admit(self.call, api)
        after_of(self._given, self._logs.of(self._stream))

    async def run(self, socket: Socket) -> str:
        """Send events until the stream ends, the server stops or the client disconnects.

        If the API key becomes invalid, its error is raised.
        """
        # Read and ignore the client's messages, because only reading reveals that the client has
        # disconnected.
        listening = asyncio.create_task(_listen(socket))
        try:
            after = after_of(self._given, self._logs.of(self._stream))
            async for events in self._logs.follow(self._stream, after, self._kinds):
                for event in events:
                    await socket.send(event.text)
                if listening.done():
                    break
        finally:
            listening.cancel()
        if self.call.again is not None:
            # This call raises an error if the API key is no longer valid.
            self.call.again()
        return "the stream has ended"


async def _listen(socket: Socket) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            await socket.receive()


class Frames:
    """Runs a model on the frames of one client concurrently, and sends the results in order.

    Args:
        service: service with the data plane and the access checks.
        tracks: trackers of the tracked streams.
        call: request that opened the WebSocket, with the model in its path.
        version: version in the path; None if the path has no version.
        query: query of the URL: options of all frames, and the timeout of each frame.

    Raises:
        InvalidOption: an option is unknown or out of range.
    """

    kind = "frames"

    def __init__(
        self, service: Service, tracks: Tracks, call: Call, version: int | None, query: str
    ) -> None:
        self._service, self._tracks, self.call, self._version = service, tracks, call, version
        values = dict(query_values(query))
        self._timeout_s = timeout_of(
            call.header("x-request-timeout-ms") or values.pop("timeout_ms", None)
        )
        if "frame" in values:
            raise InvalidOption(
                "the server numbers the frames of a WebSocket itself: remove the option frame"
            )
        self._options = query_options(urlencode(values))
        # This stream ID is random, so no other client can use it. Its track IDs are removed with
        # the connection.
        self._made = secrets.token_urlsafe(9)
        if self._options.track is not None and self._options.stream_id is None:
            self._options = replace(self._options, stream_id=self._made)
        self._credits = asyncio.Semaphore(IN_FLIGHT)
        self._begun: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._held = 0
        """Number of bytes of frames that were received but not answered."""
        self._ended: FoveaError | None = None
        """Error of an API key that became invalid. The error ends the connection."""

    def admit(self) -> None:
        """Check the API key, the model and the options. Raise the errors of a predict request."""
        call, options = self.call, self._options
        self._service.authenticator.admit(call, "inference")
        model = self._service.models.get(call.model, self._version)
        model.check_ready()
        engine = model.engine
        if engine is None or engine.preprocessor is None:
            raise InvalidRequest(
                f"model '{call.model}' does not accept images: choose a model that does"
            )
        engine.resolve(options)
        if options.track is not None:
            self._tracks.turn_of(call.model, options, 1)

    async def run(self, socket: Socket) -> str:
        """Answer frames until the server stops or no frame arrives. Return the reason for the end.

        Raises:
            WebSocketDisconnect: the client has disconnected.
            Unauthenticated, Forbidden: the API key is no longer valid.
        """
        hello = {
            "model": self.call.model,
            "in_flight": IN_FLIGHT,
            "max_bytes": self._service.settings.http_max_input_size,
            **({} if self._options.track is None else {"stream_id": self._options.stream_id}),
        }
        await socket.send(orjson.dumps(hello))
        reader = asyncio.create_task(self._read(socket))
        writer = asyncio.create_task(self._write(socket))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_EXCEPTION)
            for error in [each.exception() for each in (writer, reader) if each.done()]:
                if error is not None:
                    raise error
            return reader.result()
        finally:
            for running in (reader, writer, *self._tasks):
                running.cancel()
            # Release the bytes here, because a task that is cancelled before its first step does
            # not.
            self._give_back(self._held)
            self._tracks.forget(self._made)

    async def _read(self, socket: Socket) -> str:
        number, reason, budget = 0, "", self._service.budget
        try:
            while True:
                # Receive even if the largest number of frames is in flight, because only receiving
                # reveals that the client has disconnected.
                async with asyncio.timeout(IDLE_S):
                    frame: Content | FoveaError
                    frame = received = await socket.receive()
                # Ignore an API key, because web pages send their key even to servers that require
                # none.
                if key_in(received) is not None:
                    continue
                size = len(received)
                try:
                    budget.take(size)
                    self._held += size
                except QueueFull as full:
                    frame, size = full, 0
                await self._credits.acquire()
                # Tasks start in the order of their creation, so the tracker receives the frames in
                # order.
                task = asyncio.create_task(self._answer(number, frame, size))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._begun.put_nowait(task)
                number += 1
                # Remove the references now. Otherwise the frame would stay in memory until the next
                # frame arrives.
                del frame, received, task
        except TimeoutError:
            reason = f"no frame arrived for {IDLE_S:g} s"
        except WebSocketDisconnect as left:
            if left.code != RESTART:
                raise
        self._begun.put_nowait(None)
        return reason

    async def _write(self, socket: Socket) -> None:
        while (task := await self._begun.get()) is not None:
            await socket.send(await task)
            self._credits.release()
            if self._ended is not None:
                raise self._ended

    async def _answer(self, number: int, content: Content | FoveaError, size: int) -> bytes:
        error: FoveaError | None = None
        try:
            part = self.call.part()
        except FoveaError as refused:
            part, content = self.call.part(admitted=False), refused
            if isinstance(refused, Unauthenticated | Forbidden):
                self._ended = refused
        part.model = self.call.model
        part.infers(_OPERATION)
        part.enter()
        status = CLIENT_LEFT
        try:
            answer = await self._predict(content)
            status = 200
            return b'{"frame":%d,' % number + answer[1:]
        except FoveaError as failed:
            error = failed
        except Exception:
            log.exception("a frame failed", extra={"id": part.id})
            error = FoveaError("an internal error; the server's log has the details")
        finally:
            self._give_back(size)
            part.measure(status if error is None else http_status(error), error)
        return error_text(error, frame=number)

    async def _predict(self, content: Content | FoveaError) -> bytes:
        if isinstance(content, FoveaError):
            raise content
        if isinstance(content, str):
            raise InvalidRequest("the message is text: send each image as a binary message")
        if not content:
            raise empty()
        # Look up the model for each frame, because it may have been loaded again.
        model = self._service.plane.models.get(self.call.model, self._version)
        given = [content], self._options, self._timeout_s, ""
        return await boxes_json(self._service.plane, model, self._version, *given)

    def _give_back(self, size: int) -> None:
        size = min(size, self._held)
        self._held -= size
        self._service.budget.give_back(size)
