"""Cuts images into tiles for a model that makes pictures of them, and joins these."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial

from fovea_engines.detect.mosaic import Mosaic
from fovea_engines.detect.new_image import NewImage
from fovea_engines.engine import Engine
from fovea_preprocess.errors import FoveaError, ImageTooLarge, QueueFull
from fovea_preprocess.image import DecodedImage, ImageLimits, decode_image
from fovea_server.scheduling.base import SchedulerWrapper
from fovea_server.scheduling.rows import RowScheduler
from fovea_server.scheduling.threads import in_thread
from fovea_server.statistics.stages import Timing
from fovea_server.tensors.image_messages import ImageRequest, ImageResult, SentImage
from fovea_server.tensors.messages import InferRequest, InferResponse

# Each holds a picture that may be many times as large as its image.
_MOST_OPEN = 4


class MosaicScheduler(SchedulerWrapper):
    """Passes on one row of tiles of an image after the other.

    Args:
        engine: makes a picture of each tile.
        limits: on the decoded image, and on the picture that is made of it.
    """

    def __init__(self, inside: RowScheduler, engine: Engine, limits: ImageLimits) -> None:
        super().__init__(inside)
        self._rows = inside
        self._engine = engine
        self._limits = limits
        self._open = 0

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer tensors."""
        with self.gate.open_for(request):
            return await self._inside.infer(request)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Answer images, one after the other."""
        with self.gate.open_for(request):
            return [await self._answer(request, data) for data in request.images]

    async def _answer(self, request: ImageRequest, data: SentImage) -> ImageResult | FoveaError:
        began = time.monotonic()
        async with request.place_of(data) or nullcontext() as place:
            try:
                image = await in_thread(partial(self._decoded, data))
            except FoveaError as error:
                return error
            if place is not None:
                place.decoded(image.pixels.nbytes)
            mosaic = self._engine.mosaic((image.height, image.width))
            assert mosaic is not None, "only such models are scheduled so"
            result = ImageResult(image.width, image.height, image.orientation)
            result.timing.decode = time.monotonic() - began
            if self._open >= _MOST_OPEN and mosaic.tiled:
                raise QueueFull(
                    f"{_MOST_OPEN} pictures of many tiles are being made; send again later",
                    retry_after_s=1.0,
                )
            self._open += mosaic.tiled
            try:
                return await self._made(request, image, mosaic, result)
            except FoveaError as error:
                return error
            finally:
                self._open -= mosaic.tiled

    def _decoded(self, data: SentImage) -> DecodedImage:
        return data if isinstance(data, DecodedImage) else decode_image(data, self._limits)

    async def _made(
        self, request: ImageRequest, image: DecodedImage, mosaic: Mosaic, result: ImageResult
    ) -> ImageResult:
        parts_only = replace(request, encode=None, keep_pixels=False)
        found: list[NewImage] = []
        for number, tiles in enumerate(mosaic.rows):
            parts = [mosaic.cut(image.pixels, tile) for tile in tiles]
            crops = [DecodedImage(part, image.orientation) for part in parts]
            found = [
                _picture(answer, result.timing)
                for answer in await self._rows.predict_parts(parts_only, crops)
            ]
            self._check_size(mosaic.size_of(found[0]))
            if mosaic.tiled:
                await in_thread(partial(mosaic.add, number, found))
        return await in_thread(partial(_finished, request, image, mosaic, found, result))

    def _check_size(self, size: tuple[int, int]) -> None:
        if size[0] * size[1] > self._limits.max_pixels:
            raise ImageTooLarge(
                f"the picture would be {size[1]}x{size[0]}, over the limit of "
                f"{self._limits.max_pixels / 1e6:g} megapixels: {self._limits.pixels_advice}"
            )


def _picture(answer: ImageResult | FoveaError, timing: Timing) -> NewImage:
    """Return the picture of a tile, and note its times where they are the longest so far."""
    if isinstance(answer, FoveaError):
        raise answer
    for stage in fields(Timing):
        longest = max(getattr(each, stage.name) for each in (timing, answer.timing))
        setattr(timing, stage.name, longest)
    assert isinstance(answer.found, NewImage), "such models are scheduled so"
    return answer.found


def _finished(
    request: ImageRequest,
    image: DecodedImage,
    mosaic: Mosaic,
    found: Sequence[NewImage],
    result: ImageResult,
) -> ImageResult:
    began = time.monotonic()
    result.found = mosaic.picture(found, image.pixels)
    if request.keep_pixels:
        result.pixels = image.pixels
    if request.encode is not None:
        result.encoded = request.encode(result)
    result.timing.postprocess += time.monotonic() - began
    return result
