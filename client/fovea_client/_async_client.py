"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, Unpack

import httpx
from numpy.typing import NDArray

from fovea_client import _frames, _tensors
from fovea_client._attempts import Answer, Attempts, Call
from fovea_client._base_client import (
    MAX_IN_FLIGHT,
    BaseClient,
    Images,
    build_in_thread,
    check_many,
    iterate,
)
from fovea_client._requests import ImageFormat, PredictOptions
from fovea_client._tensors import Parameters
from fovea_client.answers import ImageError, ImageResult, Prediction
from fovea_client.images import Channels, ImageSource
from fovea_client.models import Model, ModelSummary
from fovea_client.results import Embedding, Match


class AsyncClient(BaseClient):
    """Sends images to a Fovea server from asyncio. `Client` describes the arguments and errors.

    Example:
        async with AsyncClient("http://127.0.0.1:8000") as client:
            prediction = await client.predict("yolov8n", "bus.jpg", conf=0.5)
            print(prediction.detections)
            async for result in client.predict_many("yolov8n", ["a.jpg", "b.jpg"]):
                print(result)
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 0,
        repeat_unanswered: bool = False,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, timeout, retries, repeat_unanswered, api_key, headers)
        self._lanes = _Lanes(transport)

    async def predict(
        self, model: str, image: Images, **options: Unpack[PredictOptions]
    ) -> Prediction:
        """Run a model on one image, or on a list of images, as `Client.predict` does.

        Example:
            prediction = await client.predict("yolov8n", "bus.jpg", conf=0.5)
        """
        return await self._ask_about(image, partial(self._predict, model, image, **options))

    async def predict_many(
        self,
        model: str,
        images: Iterable[ImageSource] | AsyncIterable[ImageSource],
        *,
        in_flight: int = 16,
        **options: Unpack[PredictOptions],
    ) -> AsyncIterator[ImageResult | ImageError]:
        """Run a model on many images, as `Client.predict_many` does; `images` may be asynchronous.

        Example:
            async for result in client.predict_many("yolov8n", ["a.jpg", "b.jpg"]):
                print(result)
        """
        check_many(in_flight, options)

        async def find(image: ImageSource) -> ImageResult | ImageError:
            call = await build_in_thread(image, partial(self._predict_one, model, image, **options))
            return call if isinstance(call, ImageError) else await self._ask(call)

        async def start_calls() -> AsyncIterator[asyncio.Future[ImageResult | ImageError]]:
            try:
                async for image in iterate(images):
                    yield asyncio.create_task(find(image))
            except Exception as error:  # noqa: BLE001  raised later, in the order of the images
                failed = asyncio.get_running_loop().create_future()
                failed.set_exception(error)
                yield failed

        under_way: deque[asyncio.Future[ImageResult | ImageError]] = deque()
        try:
            async for future in start_calls():
                under_way.append(future)
                if len(under_way) == in_flight:
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def stream(
        self,
        model: str,
        images: Iterable[ImageSource] | AsyncIterable[ImageSource],
        *,
        in_flight: int = 4,
        **options: Unpack[PredictOptions],
    ) -> AsyncIterator[ImageResult | ImageError]:
        """Run a model on the frames of a camera, as `Client.stream` does.

        Example:
            async for result in client.stream("yolov8n", frames, in_flight=4):
                print(result)
        """
        return _frames.astream(_frames.Frames(self._policy, model, in_flight, options), images)

    async def annotate(
        self,
        model: str,
        image: ImageSource,
        format: ImageFormat = "image/jpeg",
        **options: Unpack[PredictOptions],
    ) -> bytes:
        """Return the image with its results drawn in, as `Client.annotate` does.

        Example:
            Path("found.jpg").write_bytes(await client.annotate("yolov8n", "bus.jpg"))
        """
        build = partial(self._annotate, model, image, format, **options)
        return await self._ask_about(image, build)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        outputs: Iterable[str] | None = None,
        version: int | str | None = None,
        parameters: Parameters | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a model on tensors and return its outputs by name, as `Client.infer` does.

        Example:
            outputs = await client.infer("yolov8n", {"images": pixels})
        """
        call = await asyncio.to_thread(_tensors.infer, model, inputs, outputs, version, parameters)
        return await self._ask(call)

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        version: int | str | None = None,
        normalise: bool | None = None,
    ) -> tuple[Embedding, ...]:
        """Return the embeddings of texts, as `Client.embed` does.

        Example:
            cat, dog = await client.embed("clip", ["a cat", "a dog"])
        """
        call = self._embed(model, texts, version, normalize=normalize, normalise=normalise)
        return await self._ask(call)

    async def search(
        self,
        model: str,
        image: ImageSource | None = None,
        *,
        text: str | None = None,
        k: int | None = None,
        index: str | None = None,
        thumbnails: bool = False,
        version: int | str | None = None,
        channels: Channels = "RGB",
    ) -> tuple[Match, ...]:
        """Return the images of an index that are most similar to a query, as `Client.search` does.

        Example:
            matches = await client.search("clip", text="a red car", k=5)
        """
        build = partial(self._search, model, image, text, version, channels)
        more = {"k": k, "index": index, "thumbnails": thumbnails or None}
        return await self._ask_about(image, partial(build, **more))

    async def models(self) -> tuple[ModelSummary, ...]:
        """List the models of the server, as `Client.models` does."""
        return await self._ask(self._models())

    async def model(self, name: str, version: int | str | None = None) -> Model:
        """Return the inputs, outputs, labels and engine card of a model, as `Client.model` does."""
        return await self._ask(self._model(name, version))

    async def card(self, name: str, version: int | str | None = None) -> Mapping[str, Any] | None:
        """Return the engine card of a model, as `Client.card` does."""
        return (await self.model(name, version)).card

    async def ready(self, model: str | None = None) -> bool:
        """Return whether the server, or the named model, is ready, as `Client.ready` does."""
        return await self._ask(self._ready(model))

    async def aclose(self) -> None:
        """Close the connections; a later call raises `RuntimeError`."""
        await self._lanes.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def _ask_about(self, image: Images | None, build: Callable[[], Call[Answer]]) -> Answer:
        return await self._ask(await build_in_thread(image, build))

    async def _ask(self, call: Call[Answer]) -> Answer:
        attempts = Attempts(call, self._policy)
        for wait_s, request in attempts:
            if wait_s:
                await asyncio.sleep(wait_s)
            # Each step of a request (connect, write, read) has its own timeout, and the error of a
            # step shows whether the request was sent. The timeout below is 0.1 s later. It ends a
            # response that arrives in many small pieces, because then no single step times out.
            left = attempts.until - time.monotonic() + 0.1
            try:
                async with asyncio.timeout(left):
                    response = await self._lanes.send(request)
            except TimeoutError:
                attempts.failed(httpx.ReadTimeout("", request=request))
            except httpx.RequestError as error:
                attempts.failed(error)
            else:
                attempts.received(response)
        return attempts.answer


class _Lanes:
    """A pool of httpx clients. Each client has one connection.

    The pool reuses the client that became free last. A single httpx client with many connections is
    slower: its pool checks all connections several times per request. With 64 connections these
    checks take half of the CPU time of a request.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._transport = transport
        self._verify = httpx.create_ssl_context()
        self._idle: list[httpx.AsyncClient] = []
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._closed = False

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Wait for a free connection, and send a request over it.

        Raises:
            httpx.PoolTimeout: no connection became free in time. httpx raises its other errors.
            RuntimeError: the client is closed.
        """
        if self._closed:
            raise RuntimeError("the client is closed: create a new one")
        try:
            async with asyncio.timeout(request.extensions["timeout"].get("pool")):
                await self._room.acquire()
        except TimeoutError as error:
            message = f"{MAX_IN_FLIGHT} requests were in flight for the whole time"
            raise httpx.PoolTimeout(message, request=request) from error
        lane = self._idle.pop() if self._idle else self._new()
        sound = False
        try:
            response = await lane.send(request)
            sound = True
            return response
        finally:
            self._room.release()
            # After a cancelled request httpcore 1.0.9 may count the connection as in use forever.
            # Therefore this code closes the httpx client of a failed request. It does not close the
            # client if the caller passed a transport: all clients share that transport, and closing
            # one client would close it.
            if (sound and not self._closed) or self._transport is not None:
                self._idle.append(lane)
            else:
                await asyncio.shield(lane.aclose())

    def _new(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx.AsyncClient(verify=self._verify, limits=limits, transport=self._transport)

    async def aclose(self) -> None:
        """Close the connections. A connection in use is closed after its request."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()
