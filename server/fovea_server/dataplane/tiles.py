"""Cuts images where a request or a model asks for it, and joins what is found on their parts."""

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

# Requests of one model at a time. Each holds the pixels of an image, or a picture that may be many
# times as large.
_MAX_TILED, _MAX_PICTURES = 8, 4

Part = TypeVar("Part", bound=TaskResult)


class Tiles:
    """Answers images part by part: tiles of a request, and those of a model that makes pictures.

    Images of one request are cut one after the other. All tiles of an image run together, or one
    row of them after the other where the network makes pictures.

    Args:
        limits: on the encoded and the decoded image, and on the picture that is made of it.
    """

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def cut_of(self, model: str, engine: Engine, options: PredictOptions) -> Cut:
        """Return the way in which a model answers requests with tiles, or makes pictures."""
        if options.tile is not None:
            return partial(self._answer_by_tiles, model)
        return partial(self._answer_by_pictures, model, engine)

    async def _answer_by_tiles(
        self, model: str, request: ImageRequest, run: RunParts
    ) -> list[ImageResult | FoveaError]:
        with self._count_request(model, _MAX_TILED, "requests with tiles are being answered"):
            return [await self._answer_image(request, run, sent) for sent in request.images]

    async def _answer_image(
        self, request: ImageRequest, run: RunParts, sent: SentImage
    ) -> ImageResult | FoveaError:
        """Find the objects on all tiles of an image."""
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
        """Make a picture of an image."""
        async with self._decode_image(request, sent) as (image, began):
            if isinstance(image, FoveaError):
                return image
            mosaic = engine.mosaic((image.height, image.width))
            decode_ns, times = time.monotonic_ns() - began, list[StageTimes]()
            found = list[NewImage]()
            counting = self._count_request(
                model, _MAX_PICTURES, "pictures of many tiles are being made"
            )
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
        """Hold a place among the `most` requests of a model that are answered at a time."""
        if self._open[model] >= most:
            raise QueueFull(f"{most} {what}; send again later", retry_after_s=1.0)
        self._open[model] += 1
        try:
            yield
        finally:
            self._open[model] -= 1

    @asynccontextmanager
    async def _decode_image(
        self, request: ImageRequest, sent: SentImage
    ) -> AsyncIterator[tuple[DecodedImage | FoveaError, int]]:
        """Decode an image once there is room, which is held until it is answered.

        Yields it with the time, `time.monotonic_ns`, at which its decoding began.
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
            f"the picture would be {size[1]}x{size[0]}, over the limit of "
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
    """Run the model on parts of an image, and note the times of the slowest.

    An error that it returns is of the image, one that it raises is of the request.
    """
    crops = [DecodedImage(part, image.orientation) for part in parts]
    try:
        answers = await run(replace(request, encode=None, keep_pixels=False), crops)
    except InvalidRequest as error:  # the queue never has room for as many
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
    """Join what was found on the parts of an image, whose runs took these times; write it."""
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
