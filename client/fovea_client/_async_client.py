"""Sends requests from an event loop."""

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
    """Sends images to a Fovea server as `Client` does, with the same arguments, from asyncio."""

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
        """Find what is on an image, or with one request on a list, as `Client.predict` does."""
        return await self._ask_about(image, partial(self._predict, model, image, **options))

    async def predict_many(
        self,
        model: str,
        images: Iterable[ImageSource] | AsyncIterable[ImageSource],
        *,
        in_flight: int = 16,
        **options: Unpack[PredictOptions],
    ) -> AsyncIterator[ImageResult | ImageError]:
        """Find what is on each of many images, as `Client.predict_many` does."""
        check_many(in_flight, options)

        async def find(image: ImageSource) -> ImageResult | ImageError:
            call = await build_in_thread(image, partial(self._predict_one, model, image, **options))
            return call if isinstance(call, ImageError) else await self._ask(call)

        async def start_calls() -> AsyncIterator[asyncio.Future[ImageResult | ImageError]]:
            try:
                async for image in iterate(images):
                    yield asyncio.create_task(find(image))
            except Exception as error:  # noqa: BLE001  it is raised in its turn
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
        """Find what is on the frames of a camera, as `Client.stream` does."""
        return _frames.astream(_frames.Frames(self._policy, model, in_flight, options), images)

    async def annotate(
        self,
        model: str,
        image: ImageSource,
        format: ImageFormat = "image/jpeg",
        **options: Unpack[PredictOptions],
    ) -> bytes:
        """Return the image with its detections drawn in, as `Client.annotate` does."""
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
        """Return the outputs of a model for tensors, as `Client.infer` does."""
        call = await asyncio.to_thread(_tensors.infer, model, inputs, outputs, version, parameters)
        return await self._ask(call)

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        version: int | str | None = None,
    ) -> tuple[Embedding, ...]:
        """Return the vectors of texts, as `Client.embed` does."""
        return await self._ask(self._embed(model, texts, version, normalize=normalize))

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
        """Find images that are like one, or words, as `Client.search` does."""
        build = partial(self._search, model, image, text, version, channels)
        more = {"k": k, "index": index, "thumbnails": thumbnails or None}
        return await self._ask_about(image, partial(build, **more))

    async def models(self) -> tuple[ModelSummary, ...]:
        """List the models, as `Client.models` does."""
        return await self._ask(self._models())

    async def model(self, name: str, version: int | str | None = None) -> Model:
        """Describe a model, as `Client.model` does."""
        return await self._ask(self._model(name, version))

    async def card(self, name: str, version: int | str | None = None) -> Mapping[str, Any] | None:
        """Return the engine card of a model, as `Client.card` does."""
        return (await self.model(name, version)).card

    async def ready(self, model: str | None = None) -> bool:
        """Return True if the server, or the named model, is ready, as `Client.ready` does."""
        return await self._ask(self._ready(model))

    async def aclose(self) -> None:
        """Close the connections; a later call is a `RuntimeError`."""
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
            # The steps of a request have timeouts of their own, which tell if it was sent. This
            # one, a little later, is for answers that come drop by drop.
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
    """Clients of httpx with one connection each; the one that was used last is used first.

    A single client would do, but its pool goes through all of its connections several times a
    request: with 64 of them that takes as much CPU as all the rest.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._transport = transport
        self._verify = httpx.create_ssl_context()
        self._idle: list[httpx.AsyncClient] = []
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._closed = False

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request when a lane is free; raises as httpx does."""
        if self._closed:
            raise RuntimeError("the client is closed: create another one")
        try:
            async with asyncio.timeout(request.extensions["timeout"].get("pool")):
                await self._room.acquire()
        except TimeoutError as error:
            message = f"{MAX_IN_FLIGHT} requests were under way all the time"
            raise httpx.PoolTimeout(message, request=request) from error
        lane = self._idle.pop() if self._idle else self._new()
        sound = False
        try:
            response = await lane.send(request)
            sound = True
            return response
        finally:
            self._room.release()
            # After a cancelled request httpcore (1.0.9) may take the connection to be in use for
            # ever, and the lane has no other one. A given transport is shared by all lanes.
            if (sound and not self._closed) or self._transport is not None:
                self._idle.append(lane)
            else:
                await asyncio.shield(lane.aclose())

    def _new(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx.AsyncClient(verify=self._verify, limits=limits, transport=self._transport)

    async def aclose(self) -> None:
        """Close the connections; those in use are closed after their request."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()
