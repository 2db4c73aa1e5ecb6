"""The base of `Client` and `AsyncClient`: builds requests and reads responses."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, Unpack, cast

import httpx

from fovea_client import _requests, _responses
from fovea_client._attempts import Call, Policy, server_address
from fovea_client._display import show_lists, source_of
from fovea_client._requests import ImageFormat, PredictOptions, Request
from fovea_client.answers import ImageError, ImageResult, Prediction
from fovea_client.errors import ServerError, UnexpectedAnswer
from fovea_client.images import Channels, ImageSource, Source, Url, check_channels, image_to_send
from fovea_client.models import Model, ModelSummary
from fovea_client.results import Embedding, Match
from fovea_client.settings import with_key

Built = TypeVar("Built")

MAX_IN_FLIGHT = 100
Images: TypeAlias = ImageSource | Sequence[ImageSource]


class BaseClient:
    """Builds the calls of a client. Its subclasses send these calls with the client's `Policy`."""

    def __init__(
        self,
        url: str,
        timeout: float,
        retries: int,
        repeat_unanswered: bool,
        api_key: str | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        url = server_address(url)
        show_lists()
        sent = with_key(headers or {}, api_key)
        self._policy = Policy(url, timeout, retries, repeat_unanswered, sent)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._policy.url!r})"

    def _predict(
        self, model: str, images: Images, **options: Unpack[PredictOptions]
    ) -> Call[Prediction]:
        several: Sequence[ImageSource]
        several = images if isinstance(images, list | tuple) else [cast("ImageSource", images)]
        sources = tuple(source_of(image, options.get("channels", "RGB")) for image in several)

        def read(response: httpx.Response) -> Prediction:
            found = _prediction(response, len(several))
            for result, source in zip(found.images, sources, strict=True):
                remember_source(result, source)
            return found

        return Call(_requests.predict(model, several, **options), read)

    def _predict_one(
        self, model: str, image: ImageSource, **options: Unpack[PredictOptions]
    ) -> Call[ImageResult | ImageError] | ImageError:
        """Build the request for one of many images.

        Returns:
            The call, or an `ImageError` if the image cannot be read. Reading the response also
            returns an `ImageError` if the server rejects only this image.
        """
        to_send = encode_image(image, options.get("channels", "RGB"))
        if isinstance(to_send, ImageError):
            return to_send
        if to_send == b"":
            return ImageError("invalid_image", "the image is empty")

        def read(response: httpx.Response) -> ImageResult | ImageError:
            try:
                found = _prediction(response, 1).images[0]
            except ServerError as error:
                if error.of_one_image:
                    return ImageError(error.code, error.message)
                raise
            # Keep only paths as sources. Bytes and arrays of many images would need much memory.
            if isinstance(image, str | os.PathLike):
                remember_source(found, partial(image_to_send, image))
            return found

        again = to_send.address if isinstance(to_send, Url) else to_send
        return Call(_requests.predict(model, [again], **options), read)

    def _annotate(
        self, model: str, image: ImageSource, format: ImageFormat, **options: Unpack[PredictOptions]
    ) -> Call[bytes]:
        return Call(_requests.predict(model, [image], accept=format, **options), _responses.image)

    def _embed(
        self,
        model: str,
        texts: Sequence[str],
        version: int | str | None,
        *,
        normalize: bool,
        normalise: bool | None,
    ) -> Call[tuple[Embedding, ...]]:
        if normalise is not None:
            _requests.warn_of_normalise()
            normalize = normalise
        # Omit the default: servers of version 0.1 do not support the field `normalize`.
        raw = {} if normalize else {"normalize": False}
        body = json.dumps({"text": list(texts), **raw}).encode()
        path = f"{_requests.model_path(model, version)}/embed"
        request = Request("POST", path, {"content-type": "application/json"}, body)
        return Call(request, _responses.embeddings)

    def _search(
        self,
        model: str,
        image: ImageSource | None,
        text: str | None,
        version: int | str | None,
        channels: Channels,
        **options: int | str | None,
    ) -> Call[tuple[Match, ...]]:
        if (image is None) == (text is None):
            raise ValueError("a search needs either an image or a text: give one of them")
        query = _requests.query({"text": text, **options})
        path = f"{_requests.model_path(model, version)}/search{query}"
        if image is None:
            return Call(Request("GET", path), _responses.matches)
        content_type, body = _requests.body_of([image], channels)
        request = Request("POST", path, {"content-type": content_type}, body)
        return Call(request, _responses.matches)

    def _models(self) -> Call[tuple[ModelSummary, ...]]:
        return Call(Request("GET", "/v1/models"), _responses.models)

    def _model(self, name: str, version: int | str | None) -> Call[Model]:
        return Call(Request("GET", _requests.model_path(name, version)), _responses.model)

    def _ready(self, model: str | None) -> Call[bool]:
        return Call(Request("GET", _requests.ready_path(model)), _responses.ready)


def encode_image(image: ImageSource, channels: Channels) -> bytes | Url | ImageError:
    """Return an image in the form of a request, or an `ImageError` if it cannot be read."""
    try:
        return image_to_send(image, channels)
    except (OSError, TypeError, ValueError) as error:
        return ImageError("invalid_image", str(error) or type(error).__name__)


def remember_source(result: ImageResult | ImageError, source: Source) -> None:
    """Set the source of a result. The source is a function that reads the image again."""
    if isinstance(result, ImageResult):
        object.__setattr__(result, "source", source)  # the dataclass is frozen


def _prediction(response: httpx.Response, count: int) -> Prediction:
    found = _responses.prediction(response)
    if len(found.images) != count:
        raise UnexpectedAnswer(
            f"{count} images were sent, but the response has results for {len(found.images)}"
        )
    return found


def check_many(in_flight: int, options: PredictOptions) -> None:
    """Check the arguments of `predict_many` that hold for every image.

    Raises:
        ValueError: `in_flight` is out of its range, or `channels` is unknown.
    """
    if not 1 <= in_flight <= MAX_IN_FLIGHT:
        raise ValueError(f"in_flight must be from 1 to {MAX_IN_FLIGHT}, not {in_flight}")
    check_channels(options.get("channels", "RGB"))


async def build_in_thread(image: Images | None, build: Callable[[], Built]) -> Built:
    """Run `build`, which encodes images.

    Unless `image` is encoded bytes, `build` runs in a thread. Otherwise reading a file or encoding
    pixels would block the event loop.
    """
    return build() if isinstance(image, bytes) else await asyncio.to_thread(build)


async def iterate(
    images: Iterable[ImageSource] | AsyncIterable[ImageSource],
) -> AsyncIterator[ImageSource]:
    """Yield the images of a synchronous or asynchronous iterable."""
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image
