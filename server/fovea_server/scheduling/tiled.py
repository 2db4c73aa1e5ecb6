"""Cuts images into tiles where a request asks for it, and joins what is found on them."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.tiles import Tile, crop, cut, joined
from fovea_preprocess.errors import FoveaError, InvalidOption, QueueFull
from fovea_preprocess.image import DecodedImage, ImageLimits, decode_image
from fovea_preprocess.plural import counted
from fovea_server.scheduling.base import SchedulerWrapper
from fovea_server.scheduling.rows import RowScheduler
from fovea_server.scheduling.threads import in_thread
from fovea_server.statistics.stages import Timing
from fovea_server.tensors.image_messages import (
    DecodingPlace,
    ImageRequest,
    ImageResult,
    SentImage,
)
from fovea_server.tensors.messages import InferRequest, InferResponse

# Each holds the pixels of an image.
_MOST_OPEN = 8


class TiledScheduler(SchedulerWrapper):
    """Passes on requests without tiles, and of others all tiles of an image together.

    Args:
        limits: on the encoded and the decoded image.
        most_tiles: of one image, the whole image included.
    """

    def __init__(self, inside: RowScheduler, limits: ImageLimits, most_tiles: int) -> None:
        super().__init__(inside)
        self._rows = inside
        self._limits = limits
        self._most_tiles = most_tiles
        self._open = 0

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer tensors."""
        with self.gate.open_for(request):
            return await self._inside.infer(request)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images, one after the other where they are cut."""
        with self.gate.open_for(request):
            if request.options.tile is None:
                return await self._inside.predict(request)
            if self._open >= _MOST_OPEN:
                raise QueueFull(
                    f"{_MOST_OPEN} requests with tiles are being answered; send again later",
                    retry_after_s=1.0,
                )
            self._open += 1
            try:
                return [await self._answer(request, data) for data in request.images]
            finally:
                self._open -= 1

    async def _answer(self, request: ImageRequest, data: SentImage) -> ImageResult | FoveaError:
        async with request.place_of(data) or nullcontext() as place:
            return await self._answer_in(place, request, data)

    async def _answer_in(
        self, place: DecodingPlace | None, request: ImageRequest, data: SentImage
    ) -> ImageResult | FoveaError:
        began = time.monotonic()
        try:
            image, parts = await in_thread(partial(self._cut, request, data))
        except FoveaError as error:
            return error
        if place is not None:
            place.decoded(image.pixels.nbytes)
        decoded_s = time.monotonic() - began
        crops = [DecodedImage(crop(image.pixels, part), image.orientation) for part in parts]
        parts_only = replace(request, encode=None, keep_pixels=False)
        found = await self._rows.predict_parts(parts_only, crops)
        for each in found:
            if isinstance(each, FoveaError):
                return each
        results = [each for each in found if isinstance(each, ImageResult)]
        return await in_thread(partial(_join, request, image, parts, results, decoded_s))

    def _cut(self, request: ImageRequest, data: SentImage) -> tuple[DecodedImage, list[Tile]]:
        image = data if isinstance(data, DecodedImage) else decode_image(data, self._limits)
        parts = cut(request.options, (image.height, image.width))
        if len(parts) > self._most_tiles:
            raise InvalidOption(
                f"tile={request.options.tile} cuts an image of {image.width} x {image.height} "
                f"pixels into {counted(len(parts), 'tile')}, and --max-queue allows "
                f"{self._most_tiles}: ask for larger tiles"
            )
        return image, parts


def _join(
    request: ImageRequest,
    image: DecodedImage,
    parts: list[Tile],
    results: list[ImageResult],
    decoded_s: float,
) -> ImageResult:
    began = time.monotonic()
    objects = [each.found for each in results if isinstance(each.found, Detections)]
    size = image.height, image.width
    result = ImageResult(image.width, image.height, image.orientation)
    result.found = joined(list(zip(parts, objects, strict=True)), size, request.options)
    if request.keep_pixels:
        result.pixels = image.pixels
    # Of the slowest tile, as in a request with several images.
    for stage in fields(Timing):
        slowest = max(getattr(each.timing, stage.name) for each in results)
        setattr(result.timing, stage.name, slowest)
    result.timing.decode += decoded_s
    if request.encode is not None:
        result.encoded = request.encode(result)
    result.timing.postprocess += time.monotonic() - began
    return result
