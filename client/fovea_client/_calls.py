"""Defines the operations of a server: the request of each, and how its answer is read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack, cast

import httpx
from numpy.typing import NDArray

from fovea_client import _requests, _responses, _tensors
from fovea_client._attempts import Call
from fovea_client._display import source_of
from fovea_client._requests import ImageFormat, PredictOptions, Request
from fovea_client._tensors import Parameters
from fovea_client.answers import ImageError, ImageResult, Prediction
from fovea_client.embedding import Embedding, Match
from fovea_client.errors import ServerError, UnexpectedAnswer
from fovea_client.images import (
    Channels,
    ImageSource,
    Source,
    Url,
    check_channels,
    image_to_send,
)
from fovea_client.models import Model, ModelSummary

Built = TypeVar("Built")

MAX_IN_FLIGHT = 100
Images: TypeAlias = ImageSource | Sequence[ImageSource]


def predict(model: str, images: Images, **options: Unpack[PredictOptions]) -> Call[Prediction]:
    """Ask what is on an image, or with one request on each of a list."""
    several: Sequence[ImageSource]
    several = images if isinstance(images, list | tuple) else [cast("ImageSource", images)]
    sources = tuple(source_of(image, options.get("channels", "RGB")) for image in several)

    def read(response: httpx.Response) -> Prediction:
        found = _prediction(response, len(several))
        for result, source in zip(found.images, sources, strict=True):
            show(result, source)
        return found

    return Call(_requests.predict(model, several, **options), read)


def predict_one(
    model: str, image: ImageSource, **options: Unpack[PredictOptions]
) -> Call[ImageResult | ImageError] | ImageError:
    """Ask what is on one image of many: an error that is only its own is an answer."""
    try:
        to_send = image_to_send(image, options.get("channels", "RGB"))
    except (OSError, TypeError, ValueError) as error:
        return ImageError("invalid_image", str(error) or type(error).__name__)
    if to_send == b"":
        return ImageError("invalid_image", "the image has no bytes")

    def read(response: httpx.Response) -> ImageResult | ImageError:
        try:
            found = _prediction(response, 1).images[0]
        except ServerError as error:
            if error.of_one_image:
                return ImageError(error.code, error.message)
            raise
        # Of many images only those are found again that take no memory until then.
        if isinstance(image, str | os.PathLike):
            show(found, partial(image_to_send, image))
        return found

    again = to_send.address if isinstance(to_send, Url) else to_send
    return Call(_requests.predict(model, [again], **options), read)


def show(result: ImageResult | ImageError, source: Source) -> None:
    """Let a result find its image again."""
    if isinstance(result, ImageResult):
        object.__setattr__(result, "source", source)  # as its own __init__ would: it is frozen


def _prediction(response: httpx.Response, count: int) -> Prediction:
    found = _responses.prediction(response)
    if len(found.images) != count:
        raise UnexpectedAnswer(f"{count} images were sent, but the answer has {len(found.images)}")
    return found


def check_many(in_flight: int, options: PredictOptions) -> None:
    """Raise ValueError for arguments of `predict_many` that are wrong for every image."""
    if not 1 <= in_flight <= MAX_IN_FLIGHT:
        raise ValueError(f"in_flight is 1 to {MAX_IN_FLIGHT}, not {in_flight}")
    check_channels(options.get("channels", "RGB"))


async def built(image: Images, build: Callable[[], Built]) -> Built:
    """Build what is to be sent: files are read, and pixels encoded, outside the event loop."""
    return build() if isinstance(image, bytes) else await asyncio.to_thread(build)


async def each(
    images: Iterable[ImageSource] | AsyncIterable[ImageSource],
) -> AsyncIterator[ImageSource]:
    """Yield images of any iterable."""
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image


def annotate(
    model: str, image: ImageSource, format: ImageFormat, **options: Unpack[PredictOptions]
) -> Call[bytes]:
    """Ask for an image with its detections drawn in."""
    return Call(_requests.predict(model, [image], accept=format, **options), _responses.image)


def embed(
    model: str, texts: Sequence[str], version: int | str | None, *, normalise: bool
) -> Call[tuple[Embedding, ...]]:
    """Ask for the vectors of texts."""
    request = _requests.texts(model, texts, version, normalise=normalise)
    return Call(request, _responses.embeddings)


def search(
    model: str,
    image: ImageSource | None,
    text: str | None,
    k: int | None,
    index: str | None,
    version: int | str | None,
    channels: Channels,
    *,
    thumbnails: bool,
) -> Call[tuple[Match, ...]]:
    """Ask for the images of an index that are most like an image, or words."""
    request = _requests.search(
        model,
        image,
        text=text,
        k=k,
        index=index,
        thumbnails=thumbnails,
        version=version,
        channels=channels,
    )
    return Call(request, _responses.matches)


def models() -> Call[tuple[ModelSummary, ...]]:
    """Ask for the list of models."""
    return Call(Request("GET", "/v1/models"), _responses.models)


def model(name: str, version: int | str | None) -> Call[Model]:
    """Ask for the description of a model."""
    return Call(Request("GET", _requests.model_path(name, version)), _responses.model)


def infer(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Iterable[str] | None,
    version: int | str | None,
    parameters: Parameters | None,
) -> Call[dict[str, NDArray[Any]]]:
    """Ask for the outputs of a model."""
    asked = _tensors.request(model, inputs, outputs=outputs, version=version, parameters=parameters)
    return Call(asked, _tensors.outputs)


def ready(model: str | None) -> Call[bool]:
    """Ask for readiness."""
    return Call(Request("GET", _requests.ready_path(model)), _responses.ready)
