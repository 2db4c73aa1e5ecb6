"""Cuts images into tiles, runs a model on the tiles, and joins the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.engine import Engine
from fovea_engines.results.detections import Detections
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.tiles import crop, cut, join_tiles
from fovea_preprocess.errors import (
    FoveaError,
    ImageTooLarge,
    InvalidOption,
    InvalidRequest,
    QueueFull,
)
from fovea_preprocess.image import DecodedImage, ImageLimits, decode_image
from fovea_server.observability.model_statistics import StageTimes
from fovea_server.scheduling.base import run_in_thread
from fovea_server.tensors.messages import Cut, ImageRequest, ImageResult, RunParts, SentImage

# Largest number of concurrent requests per model: for tiled detection, and for image-to-image
# models. Each request holds the pixels of an image, and an output image may be many times larger
# than the input.
_MAX_TILED, _MAX_PICTURES = 8, 4

Part = TypeVar("Part", bound=TaskResult)


class Tiles:
    """Runs models on the tiles of images, for requests with `tile` and for image-to-image models.

    The images of one request are processed one after the other. For detection, the model runs on
    all tiles of an image together. For image-to-image models, it runs on one row of tiles after the
    other.

    Args:
        limits: limits for the sizes of the encoded, the decoded and the output image.
    """

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def cut_of(self, model: str, engine: Engine, options: PredictOptions) -> Cut:
        """Return the function that runs a model on the parts of a request's images."""
        if options.tile is not None:
            return partial(self._answer_by_tiles, model)
        return partial(self._answer_by_pictures, model, engine)

    async def _answer_by_tiles(
        self, model: str, request: ImageRequest, run: RunParts
    ) -> list[ImageResult | FoveaError]:
        with self._count_request(model, _MAX_TILED, "requests with tiles"):
            return [await self._answer_image(request, run, sent) for sent in request.images]

    async def _answer_image(
        self, request: ImageRequest, run: RunParts, sent: SentImage
    ) -> ImageResult | FoveaError:
        """Run a detector on all tiles of an image, and join the results."""
        async with self._decode_image(request, sent) as (image, began):
            if isinstance(image, FoveaError):
                return image
            size = image.height, image.width
            try:
                tiles = cut(request.options, size)
            except InvalidOption as error:
                return error
            decode_ns, times = time.monotonic_ns() - began, list[StageTimes]()
            crops = [crop(image.pixels, tile) for tile in tiles]
            found = await _run_parts(Detections, request, run, image, crops, times)
            if isinstance(found, FoveaError):
                return found
            join = partial(join_tiles, list(zip(tiles, found, strict=True)), size, request.options)
            return await run_in_thread(partial(_answer, request, image, decode_ns, times, join))

    async def _answer_by_pictures(
        self, model: str, engine: Engine, request: ImageRequest, run: RunParts
    ) -> list[ImageResult | FoveaError]:
        return [await self._picture(model, engine, request, run, sent) for sent in request.images]

    async def _picture(
        self, model: str, engine: Engine, request: ImageRequest, run: RunParts, sent: SentImage
    ) -> ImageResult | FoveaError:
        """Compute the output image of an image-to-image model for one image."""
        async with self._decode_image(request, sent) as (image, began):
            if isinstance(image, FoveaError):
                return image
            mosaic = engine.mosaic((image.height, image.width))
            decode_ns, times = time.monotonic_ns() - began, list[StageTimes]()
            found = list[NewImage]()
            counting = self._count_request(model, _MAX_PICTURES, "output images of several tiles")
            with counting if mosaic.tiled else nullcontext():
                for number, tiles in enumerate(mosaic.rows):
                    parts = [mosaic.cut(image.pixels, tile) for tile in tiles]
                    row = await _run_parts(NewImage, request, run, image, parts, times)
                    if isinstance(row, FoveaError):
                        return row
                    found = row
                    if (error := self._too_large(mosaic.size_of(found[0]))) is not None:
                        return error
                    if mosaic.tiled:
                        await run_in_thread(partial(mosaic.add, number, found))
                join = partial(mosaic.picture, found, image.pixels)
                return await run_in_thread(partial(_answer, request, image, decode_ns, times, join))

    @contextmanager
    def _count_request(self, model: str, most: int, what: str) -> Iterator[None]:
        """Count a request in flight. Reject it if the model already has `most` requests in flight.

        Raises:
            QueueFull: the model has `most` requests in flight.
        """
        if self._open[model] >= most:
            raise QueueFull(
                f"the model already processes {most} {what}, and the limit is reached: send the "
                "request again later",
                retry_after_s=1.0,
            )
        self._open[model] += 1
        try:
            yield
        finally:
            self._open[model] -= 1

    @asynccontextmanager
    async def _decode_image(
        self, request: ImageRequest, sent: SentImage
    ) -> AsyncIterator[tuple[DecodedImage | FoveaError, int]]:
        """Decode an image as soon as the memory budget allows it. Free it at the end of the block.

        Yields:
            The image or its error, and the time when decoding began, from `time.monotonic_ns`.
        """
        async with request.place_of(sent) or nullcontext() as place:
            began = time.monotonic_ns()
            image: DecodedImage | FoveaError
            try:
                image = await run_in_thread(partial(self._decode, sent))
            except FoveaError as error:
                image = error
            else:
                if place is not None:
                    place.end_decoding(image.pixels.nbytes)
            yield image, began

    def _decode(self, sent: SentImage) -> DecodedImage:
        return sent if isinstance(sent, DecodedImage) else decode_image(sent, self._limits)

    def _too_large(self, size: tuple[int, int]) -> ImageTooLarge | None:
        if size[0] * size[1] <= self._limits.max_pixels:
            return None
        return ImageTooLarge(
            f"the output image would have {size[1]}x{size[0]} pixels, above the limit of "
            f"{self._limits.max_pixels / 1e6:g} megapixels: {self._limits.pixels_advice}"
        )


async def _run_parts(
    kind: type[Part],
    request: ImageRequest,
    run: RunParts,
    image: DecodedImage,
    parts: Sequence[NDArray[np.uint8]],
    times: list[StageTimes],
) -> list[Part] | FoveaError:
    """Run the model on parts of an image, and append the times of the slowest part to `times`.

    Returns:
        The results of the parts. If a part fails with an error that concerns only this image, the
        error. Errors that concern the whole request are raised.
    """
    crops = [DecodedImage(part, image.orientation) for part in parts]
    try:
        answers = await run(replace(request, encode=None, keep_pixels=False), crops)
    except InvalidRequest as error:  # the queue can never hold as many parts as this image has
        return error
    found = list[Part]()
    for answer in answers:
        if isinstance(answer, FoveaError):
            return answer
        assert isinstance(answer.found, kind), "the task was checked"
        found.append(answer.found)
    times.append(max((each.times for each in answers if isinstance(each, ImageResult)), key=sum))
    return found


def _answer(
    request: ImageRequest,
    image: DecodedImage,
    decode_ns: int,
    runs: Sequence[StageTimes],
    join: Callable[[], TaskResult],
) -> ImageResult:
    """Join the results of an image's parts, encode the result, and sum the times of the runs."""
    began = time.monotonic_ns()
    result = ImageResult(image.width, image.height, image.orientation, join())
    if request.keep_pixels:
        result.pixels = image.pixels
    if request.encode is not None:
        result.encoded = request.encode(result)
    times = StageTimes(*map(sum, zip(*runs, strict=True)))
    output_ns = times.output + time.monotonic_ns() - began
    result.times = times._replace(decode=times.decode + decode_ns, output=output_ns)
    return result
