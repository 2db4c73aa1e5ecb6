"""Runs a pipeline for a request: the detector, and then each stage on crops of what it found."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fovea_engines.engine import Engine
from fovea_engines.results.detections import Detections
from fovea_engines.results.findings import Finding
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import DecodedImage
from fovea_server.pipelines.crops import Pixels
from fovea_server.pipelines.stages import BoundStage
from fovea_server.tensors.image_messages import ImageRequest, ImageResult

Answers = list[ImageResult | FoveaError]
Ask = Callable[[str, ImageRequest], Awaitable[tuple[Engine, Answers]]]
Results = Awaitable[Answers]

# A queue has room for twice as many crops of one pipeline: others may ask its model, too.
_SHARE_OF_QUEUE = 2
_WAVES = 4


@dataclass(slots=True, eq=False)
class _Image:
    """An image between stages: crops by stage and object, and what was found of each object."""

    crops: dict[str, dict[int, Pixels]]
    masked: bool
    findings: defaultdict[int, list[Finding]] = field(default_factory=lambda: defaultdict(list))


class PipelineRun:
    """Answers images. Calls share the models' queues with each other and with other requests.

    Args:
        first: name and model of the detector's stage.
        stages: the others, each after that which it builds on.
        ask: has a model answer.
        most: images that a model takes into its queue.
    """

    def __init__(
        self, first: tuple[str, str], stages: Sequence[BoundStage], ask: Ask, most: int
    ) -> None:
        self._first = first
        self._stages = stages
        self._ask = ask
        self._wave = max(1, most // (_SHARE_OF_QUEUE * _WAVES))
        self._rooms = {stage.name: asyncio.Semaphore(min(_WAVES, most)) for stage in stages}

    async def __call__(self, request: ImageRequest) -> Answers:
        """Answer images, in order."""
        began, (name, model) = time.monotonic_ns(), self._first
        cut: dict[int, _Image] = {}

        def keep_crops(result: ImageResult) -> bytes:
            # In the thread that found the objects: an image is not kept, only what stages see.
            found = result.found
            assert isinstance(found, Detections), "it was checked"
            assert result.pixels is not None, "asked for with keep_pixels"
            crops = {
                stage.name: stage.crops(result.pixels, found)
                for stage in self._stages
                if not stage.base
            }
            if not request.keep_pixels:
                result.pixels = None
            if any(crops.values()):
                cut[id(result)] = _Image(crops, found.masks is not None)
                return b""
            return _encoded(request, result, None)

        _, results = await self._asked(
            name, model, replace(request, keep_pixels=True, encode=keep_crops)
        )
        stages = {name: time.monotonic_ns() - began}
        images = {id(each): each for each in results if isinstance(each, ImageResult)}
        if cut:
            for stage in self._stages:
                began = time.monotonic_ns()
                await self._look(stage, list(cut.values()), request)
                stages[stage.name] = time.monotonic_ns() - began
            for key, image in cut.items():
                write = partial(_encoded, request, images[key], image)
                # Masks are written in milliseconds, and all else in microseconds.
                images[key].encoded = await asyncio.to_thread(write) if image.masked else write()
        for result in images.values():
            result.stages = stages
        return results

    async def _look(
        self, stage: BoundStage, images: Sequence[_Image], request: ImageRequest
    ) -> None:
        """Have a stage look at all crops that it is for, of all images of a request."""
        seen: list[tuple[_Image, int, Pixels]] = []
        for image in images:
            if stage.base:
                image.crops[stage.name] = _of_base(stage, image)
            seen += [(image, *item) for item in image.crops.get(stage.name, {}).items()]
        for start in range(0, len(seen), self._wave):
            wave = seen[start : start + self._wave]
            crops = ImageRequest(
                [DecodedImage(pixels, 1) for _, _, pixels in wave],
                _options(stage),
                id=request.id,
                priority=request.priority,
                timeout_us=request.timeout_us,
                client=request.client,
            )
            async with self._rooms[stage.name]:
                engine, answers = await self._asked(stage.name, stage.table.model, crops)
            for (image, index, _), answer in zip(wave, answers, strict=True):
                if isinstance(answer, FoveaError):
                    finding = stage.failed(answer)
                else:
                    assert answer.found is not None, "its head is known"
                    finding = stage.finding(engine, answer.found)
                image.findings[index].append(finding)

    async def _asked(self, stage: str, model: str, request: ImageRequest) -> tuple[Engine, Answers]:
        try:
            return await self._ask(model, request)
        except FoveaError as error:
            raise error.with_text(f"stage '{stage}': {error}") from error


def _options(stage: BoundStage) -> PredictOptions:
    top_k = stage.table.top_k
    return PredictOptions() if top_k is None else PredictOptions(top_k=top_k)


def _of_base(stage: BoundStage, image: _Image) -> dict[int, Pixels]:
    """Choose from the crops of its base by what that has found."""
    chosen: dict[int, Pixels] = {}
    for index, crop in image.crops[stage.base].items():
        said = next(each for each in image.findings[index] if each.stage == stage.base)
        if (mine := stage.of_base(crop, said)) is not None:
            chosen[index] = mine
    return chosen


def _encoded(request: ImageRequest, result: ImageResult, image: _Image | None) -> bytes:
    """Give the objects of a result their findings, and write it."""
    found = result.found
    assert isinstance(found, Detections), "it was checked"
    findings = {} if image is None else image.findings
    # The first model may be a pipeline, which has findings of its own.
    before = found.findings or ((),) * len(found)
    said = tuple((*mine, *findings.get(index, ())) for index, mine in enumerate(before))
    result.found = replace(found, findings=said)
    return b"" if request.encode is None else request.encode(result)
