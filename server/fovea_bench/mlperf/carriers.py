"""Ways in which samples of LoadGen reach a model: over HTTP, over gRPC, and in this process."""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import uvloop

from fovea_bench.connection import Connection
from fovea_bench.load import Endpoint
from fovea_bench.sender import error_of
from fovea_engines.engine import Engine
from fovea_engines.session import Closing
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import decode_image

Ask: TypeAlias = tuple[int, int]
"""An id, which is given back, and the number of an image."""
Done: TypeAlias = Callable[[int, str], None]
"""Takes an id and the reason of a failure, empty for an answer; any thread may call it."""

INFER = "/inference.GRPCInferenceService/ModelInfer"


class Carrier(Closing, Protocol):
    """Has images answered."""

    def issue(self, asks: Sequence[Ask], done: Done) -> None:
        """Have images answered, and return at once."""


class LoopCarrier(Carrier):
    """Sends requests from an event loop in a thread of its own.

    LoadGen calls from threads of its own, which then hold the interpreter for microseconds only.
    `at_once` requests are under way at most; None is no limit.
    """

    def __init__(self, requests: Sequence[bytes], at_once: int | None, timeout_s: float) -> None:
        self._requests, self._timeout_s = requests, timeout_s
        self._at_once = at_once or sys.maxsize
        self._waiting: deque[tuple[int, int, Done]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests")
        self._thread.start()

    def issue(self, asks: Sequence[Ask], done: Done) -> None:
        """Send requests, no more at a time than there is room for."""
        self._loop.call_soon_threadsafe(self._take, asks, done)

    def _take(self, asks: Sequence[Ask], done: Done) -> None:
        self._waiting.extend((number, image, done) for number, image in asks)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._at_once:
            task = self._loop.create_task(self._answer(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._fill()

    async def _answer(self, number: int, image: int, done: Done) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                failure = await self._ask(self._requests[image % len(self._requests)])
        except TimeoutError:
            failure = f"no answer within {self._timeout_s:g} s"
        done(number, failure)

    @abstractmethod
    async def _ask(self, request: bytes) -> str:
        """Send a request; return the reason of a failure, or nothing."""

    async def _hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """Hang up. Calling it again does nothing."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class HttpCarrier(LoopCarrier):
    """Sends requests as `requests.image_requests` makes them, on kept connections."""

    def __init__(
        self, endpoint: Endpoint, requests: Sequence[bytes], at_once: int | None, timeout_s: float
    ) -> None:
        self._endpoint = endpoint
        self._idle: list[Connection] = []
        super().__init__(requests, at_once, timeout_s)

    async def _ask(self, request: bytes) -> str:
        try:
            connection = self._idle.pop() if self._idle else None
            if connection is None or not connection.open:
                connection = await Connection.to(self._endpoint.host, self._endpoint.port)
            reply = await connection.ask(request)
        except OSError as error:
            return error.strerror or str(error)
        self._idle.append(connection)
        return "" if reply.status == 200 else ": ".join(error_of(reply.body))

    async def _hang_up(self) -> None:
        await super()._hang_up()
        for connection in self._idle:
            connection.close()


class GrpcCarrier(LoopCarrier):
    """Sends serialised `ModelInferRequest`s on one channel."""

    def __init__(
        self, endpoint: Endpoint, requests: Sequence[bytes], at_once: int | None, timeout_s: float
    ) -> None:
        self._endpoint = endpoint
        self._call: Any = None
        self._channel: Any = None
        super().__init__(requests, at_once, timeout_s)

    async def _ask(self, request: bytes) -> str:
        import grpc

        if self._call is None:
            unlimited = [("grpc.max_receive_message_length", -1)]
            address = f"{self._endpoint.host}:{self._endpoint.port}"
            self._channel = grpc.aio.insecure_channel(address, unlimited)
            # Without serialisers: the bytes are made before the test, and not read in it.
            self._call = self._channel.unary_unary(INFER)
        try:
            await self._call(request)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def _hang_up(self) -> None:
        await super()._hang_up()
        if self._channel is not None:
            await self._channel.close()


class EngineCarrier(Carrier):
    """Runs the engine in a version's folder in this process, from decoding to boxes.

    With `alone`, an image has all cores, and else one of them.
    """

    def __init__(self, folder: Path, images: Sequence[bytes], alone: bool) -> None:
        self._engine = Engine.open(folder)
        self._images, self._alone = images, alone
        self._threads = ThreadPoolExecutor(1 if alone else self._engine.session.concurrency)

    def issue(self, asks: Sequence[Ask], done: Done) -> None:
        """Hand images to threads, one for each image that the engine computes at a time."""
        for number, image in asks:
            self._threads.submit(self._answer, number, image, done)

    def _answer(self, number: int, image: int, done: Done) -> None:
        failure = ""
        try:
            pixels = decode_image(self._images[image % len(self._images)]).pixels
            self._engine.predict(pixels, alone=self._alone)
        except FoveaError as error:
            failure = str(error)
        done(number, failure)

    def close(self) -> None:
        """Close the engine. Calling it again does nothing."""
        self._threads.shutdown(cancel_futures=True)
        self._engine.close()
