"""Reads pipeline.toml and runs the stages of a pipeline."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fovea_engines.engine import Engine
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_engines.repository.model_config import ModelConfig, ModelParameter
from fovea_engines.repository.model_config_scheduling import EnsembleStep, ModelEnsembling
from fovea_engines.repository.repository import ModelRepository, check_name
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.stage_results import StageResult
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption, NotFound
from fovea_preprocess.image import DecodedImage
from fovea_preprocess.mistakes import key_fault, suggest
from fovea_server.pipelines.reference import PipelineCard, StageEngine
from fovea_server.pipelines.stages import BoundStage, Pixels, bind_stage
from fovea_server.tensors.image_outputs import image_outputs
from fovea_server.tensors.messages import ImageRequest, ImageResult

Answers = list[ImageResult | FoveaError]
Ask = Callable[[str, ImageRequest], Awaitable[tuple[Engine, Answers]]]
Results = Awaitable[Answers]

# The crops of one pipeline request take at most the model's queue size divided by this number,
# because other requests use the same model.
_SHARE_OF_QUEUE = 2
_WAVES = 4

PLATFORM = "fovea_composite"
"""Platform in the configuration of a pipeline. The ensemble steps of this configuration are the
pipeline's models.
"""

PIPELINE_FILE = "pipeline.toml"

# Keys that choose a part of the image. They are invalid in a stage that runs on the crops of
# another stage.
_OF_CROPS = ("crop", "padding", "min_size")


@dataclass(slots=True, eq=False)
class _Image:
    """Crops of an image by stage and object index, and the stage results of each object."""

    crops: dict[str, dict[int, Pixels]]
    masked: bool
    stage_results: defaultdict[int, list[StageResult]] = field(
        default_factory=lambda: defaultdict(list)
    )


class PipelineRun:
    """Runs a pipeline on images. Concurrent calls share the queues of the models.

    Args:
        first: name of the first stage, and its model.
        stages: other stages, in an order in which each stage follows its base stage.
        ask: function that runs a model on images.
        most: largest number of images in the queue of a model.
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
        """Return the results of the images, in their order."""
        began, (name, model) = time.monotonic_ns(), self._first
        cut: dict[int, _Image] = {}

        def keep_crops(result: ImageResult) -> bytes:
            # This function runs in the thread that detected the objects. It cuts the crops, so that
            # the whole image need not stay in memory.
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
            return _encode(request, result, None)

        _, results = await self._predict(
            name, model, replace(request, keep_pixels=True, encode=keep_crops)
        )
        stages = {name: time.monotonic_ns() - began}
        images = {id(each): each for each in results if isinstance(each, ImageResult)}
        if cut:
            for stage in self._stages:
                began = time.monotonic_ns()
                await self._run_stage(stage, list(cut.values()), request)
                stages[stage.name] = time.monotonic_ns() - began
            for key, image in cut.items():
                write = partial(_encode, request, images[key], image)
                # Encode masks in a thread, because they take milliseconds. Other results take
                # microseconds.
                images[key].encoded = await asyncio.to_thread(write) if image.masked else write()
        for result in images.values():
            result.stages = stages
        return results

    async def _run_stage(
        self, stage: BoundStage, images: Sequence[_Image], request: ImageRequest
    ) -> None:
        """Run a stage on its crops from all images of a request."""
        seen: list[tuple[_Image, int, Pixels]] = []
        for image in images:
            if stage.base:
                image.crops[stage.name] = _choose_crops(stage, image)
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
                engine, answers = await self._predict(stage.name, stage.table.model, crops)
            for (image, index, _), answer in zip(wave, answers, strict=True):
                if isinstance(answer, FoveaError):
                    of_stage = stage.make_failed_result(answer)
                else:
                    assert answer.found is not None, "its head is known"
                    of_stage = stage.make_result(engine, answer.found)
                image.stage_results[index].append(of_stage)

    async def _predict(
        self, stage: str, model: str, request: ImageRequest
    ) -> tuple[Engine, Answers]:
        try:
            return await self._ask(model, request)
        except FoveaError as error:
            raise error.with_text(f"stage '{stage}': {error}") from error


def _options(stage: BoundStage) -> PredictOptions:
    top_k = stage.table.top_k
    return PredictOptions() if top_k is None else PredictOptions(top_k=top_k)


def _choose_crops(stage: BoundStage, image: _Image) -> dict[int, Pixels]:
    """Choose the crops of the base stage on which this stage runs.

    The choice depends on the results of the base stage.
    """
    chosen: dict[int, Pixels] = {}
    for index, crop in image.crops[stage.base].items():
        base = next(each for each in image.stage_results[index] if each.stage == stage.base)
        if (mine := stage.cut_from_crop(crop, base)) is not None:
            chosen[index] = mine
    return chosen


def _encode(request: ImageRequest, result: ImageResult, image: _Image | None) -> bytes:
    """Add the stage results to the objects of a result, and encode the result."""
    found = result.found
    assert isinstance(found, Detections), "it was checked"
    stage_results = {} if image is None else image.stage_results
    # If the first model is a pipeline, its objects already have stage results.
    before = found.stage_results or ((),) * len(found)
    merged = tuple((*mine, *stage_results.get(index, ())) for index, mine in enumerate(before))
    result.found = replace(found, stage_results=merged)
    return b"" if request.encode is None else request.encode(result)


def pipeline_config(folder: Path, name: str) -> ModelConfig:
    """Return the configuration of a pipeline's directory.

    Raises:
        InvalidModel: the directory also has config.pbtxt, or pipeline.toml is invalid.
    """
    if (folder / CONFIG_FILE).exists():
        raise InvalidModel(
            f"{folder} has both {CONFIG_FILE} and {PIPELINE_FILE}: remove one of them"
        )
    models = Pipeline.read(folder).models
    steps = tuple(EnsembleStep(model, model_version=-1) for model in models)
    return ModelConfig(name=name, platform=PLATFORM, ensemble_scheduling=ModelEnsembling(steps))


def complete_config(config: ModelConfig, first: ModelConfig, engine: Engine | None) -> ModelConfig:
    """Add the batch size, the input and the image outputs of the first model to a configuration."""
    parameters = {}
    if engine is not None and engine.head is not None:
        listed = orjson.dumps(image_outputs(engine.head, of_pipeline=True)).decode()
        parameters = {"image_outputs": ModelParameter(listed)}
    rows, taken = first.max_batch_size, first.input[:1]
    return replace(config, max_batch_size=rows, input=taken, parameters=parameters)


class StageTable(BaseModel):
    """A table `[[stages]]` in pipeline.toml: a model, and the crops that it runs on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    name: str = ""
    base: str = Field("", alias="from")
    classes: list[str | int] = []
    least_score: float = Field(0.0, alias="if", ge=0, le=1)
    min_size: int = Field(1, ge=1, le=100_000)
    padding: float = Field(0.0, ge=0, le=2)
    crop: Literal["box", "rotated", "keypoints"] = "box"
    turn: Mapping[str, float] = {}
    top_k: int | None = Field(None, ge=1, le=1000)
    to: Literal["attributes", "text", "embedding", "classes", ""] = ""

    @property
    def title(self) -> str:
        """Return the name of the stage. The default is the name of the stage's model."""
        return self.name or self.model


def is_pipeline(folder: Path) -> bool:
    """Return whether a directory has a pipeline.toml.

    If the directory may not be read, return False.
    """
    try:
        return (folder / PIPELINE_FILE).is_file()
    except PermissionError:
        return False


StageRow = dict[str, str]
"""A stage for display. The keys are "name", "model", "sees" (the crops) and "gives" (the result).
"""


class Pipeline(BaseModel):
    """The content of pipeline.toml. The first model supplies labels, task and options."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    stages: list[StageTable] = Field(min_length=2)
    _folder: Path = PrivateAttr()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the pipeline.toml in a model's directory.

        Raises:
            InvalidModel: the file is invalid. The message has the reason.
        """
        path = folder / PIPELINE_FILE
        try:
            read = cls.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
        except ValidationError as error:
            raise InvalidModel(f"{path}: {_wrong(error)}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path} is not TOML: {error}") from error
        if (fault := read._fault()) is not None:
            raise InvalidModel(f"{path}: {fault}")
        read._folder = folder
        return read

    def _fault(self) -> str | None:
        first, *later = self.stages
        for number, stage in enumerate(self.stages, 1):
            try:
                check_name(stage.model)
            except InvalidOption as error:
                return f"stage {number}: {error}"
        if extra := first.model_fields_set - {"model", "name"}:
            key = _key(min(extra))
            return (
                f"{key} has no effect on the first stage, which runs on the whole image: remove it"
            )
        seen = [first.title]
        for stage in later:
            if stage.title in seen:
                return f"two stages have the name {stage.title!r}: rename one"
            if stage.base and stage.base not in seen:
                return (
                    f"from = {stage.base!r} does not name an earlier "
                    f"stage{suggest(stage.base, seen)}"
                )
            chained = stage.base not in ("", first.title)
            if chained and (extra := stage.model_fields_set.intersection(_OF_CROPS)):
                return (
                    f"stage {stage.title!r} runs on the crops of {stage.base!r}, so {min(extra)} "
                    f"has no effect: remove {min(extra)}, or remove `from`"
                )
            if stage.turn and not chained:
                return (
                    f"turn of stage {stage.title!r} has no effect without `from`: set `from` to "
                    "the stage that classifies the rotation"
                )
            seen.append(stage.title)
        return None

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models without repetition.

        The first stage's model comes first.
        """
        return tuple(dict.fromkeys(stage.model for stage in self.stages))

    def bind(
        self, engines: Mapping[str, Engine], ask: Ask, most: int
    ) -> Callable[[ImageRequest], Results]:
        """Check that the models fit together, and return the function that runs the pipeline.

        Args:
            engines: engines of all models, by model name.
            ask: function that runs a model on images.
            most: largest number of images in the queue of a model.

        Raises:
            InvalidModel: a model does not fit its stage.
        """
        first, stages = self.stages[0], self._bind_stages({n: e.card for n, e in engines.items()})
        return PipelineRun((first.title, first.model), stages, ask, most)

    def describe(self, cards: Mapping[str, EngineCard]) -> tuple[StageRow, ...]:
        """Return the stages for display. Raise the errors of `bind_stage`."""
        first, stages = self.stages[0], self._bind_stages(cards)
        rows = [(first, "the image", cards[first.model].task)]
        rows += [(each.table, each.sees, each.field) for each in stages]
        return tuple(
            {"name": table.title, "model": table.model, "sees": sees, "gives": gives}
            for table, sees, gives in rows
        )

    @property
    def reference(self) -> str:
        """Return a line of text about the pipeline's reference, or "" if there is none.

        Raises:
            InvalidModel: the reference is damaged.
        """
        card = PipelineCard.read(self._folder)
        return "" if card is None else card.text

    def engines(self) -> Iterator[tuple[str, StageEngine]]:
        """Yield the name of each stage and the engine that is served for the stage."""
        first, *later = self.stages
        root = self._folder.parent
        if (root / first.model / PIPELINE_FILE).is_file():
            yield from Pipeline.read(root / first.model).engines()
        else:
            later = self.stages
        for stage in later:
            yield stage.title, _engine(ModelRepository(root), stage.model)

    def _bind_stages(self, cards: Mapping[str, EngineCard]) -> tuple[BoundStage, ...]:
        first, *later = self.stages
        stages: dict[str, BoundStage] = {}
        for stage in later:
            base = stages.get(stage.base)
            stages[stage.title] = bind_stage(stage, cards, first.model, base)
        return tuple(stages.values())


def check_reference(folder: Path) -> None:
    """Check that the reference of a pipeline was made with the engines that are served now.

    Raises:
        InvalidOption: a stage's engine differs from its engine in the reference.
        InvalidModel: the pipeline or its reference is invalid.
    """
    card = PipelineCard.read(folder) if is_pipeline(folder) else None
    if card is None:
        return
    replaced = [
        f"stage '{name}' has another engine than the reference ({engine.text(before)})"
        for name, engine in Pipeline.read(folder).engines()
        if (before := card.stages.get(name)) is None
        or (before.model, before.key) != (engine.model, engine.key)
    ]
    if replaced:
        raise InvalidOption(
            f"{'; '.join(replaced)}: run `fovea build --pipeline {folder.name} --images DIR "
            "--check` to see how much the results have changed; the reference was made with "
            f"{card.images_from}"
        )


def _engine(repository: ModelRepository, model: str) -> StageEngine:
    served = repository.served(model)
    if not served:
        raise NotFound(f"there is no model '{model}'")
    file = repository.folder(model, served[-1]) / CARD_FILE
    # An engine from another program has no card.json, and therefore no content key.
    key = EngineCard.read(file).content_key if file.is_file() else ""
    return StageEngine(model=model, version=served[-1], key=key)


def _key(field: str) -> str:
    known = StageTable.model_fields.get(field)
    return (known and known.alias) or field


def _wrong(error: ValidationError) -> str:
    """Return a text for the first error. If a key is unknown, suggest a similar key."""
    # Report unknown keys first, because a missing key may be a key with a spelling mistake.
    first, *_ = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    match first["loc"]:
        case ("stages",) | ("stages", int()):
            return "the file needs at least two stages: write a table [[stages]] for each stage"
        case ("stages", int() as number, *_):
            keys = [_key(name) for name in StageTable.model_fields]
            return f"stage {number + 1}: {key_fault(first, keys)}"
    return key_fault(first, Pipeline.model_fields)
