"""Reads pipeline.toml: the stages of a pipeline as they are written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fovea_engines.engine import Engine
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.repository import ModelRepository, check_name
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound
from fovea_preprocess.mistakes import key_fault, meant
from fovea_server.pipelines.reference import PipelineCard, StageEngine
from fovea_server.pipelines.run import Ask, PipelineRun, Results
from fovea_server.pipelines.stages import BoundStage, bound
from fovea_server.tensors.image_messages import ImageRequest

PIPELINE_FILE = "pipeline.toml"

# Keys that say which part of the image a stage sees; a stage on the crops of another has none.
_OF_CROPS = ("crop", "padding", "min_size")


class StageTable(BaseModel):
    """A table `[[stages]]`: a model, and the crops that it sees."""

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
        """Return its name, by default that of its model."""
        return self.name or self.model


def is_pipeline(folder: Path) -> bool:
    """Return whether a folder of the repository is a pipeline; False if it may not be read."""
    try:
        return (folder / PIPELINE_FILE).is_file()
    except PermissionError:
        return False


StageRow = dict[str, str]
"""A stage for people: its "name", its "model", what of an image it "sees", and what it "gives"."""


class Pipeline(BaseModel):
    """The file: a model made of others, the first of which answers for labels, task and options."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    stages: list[StageTable] = Field(min_length=2)
    _folder: Path = PrivateAttr()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of a model's folder; InvalidModel says what is wrong with it."""
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
            return f"{key} is not for the first stage, which sees the whole image: leave it out"
        seen = [first.title]
        for stage in later:
            if stage.title in seen:
                return f"two stages are called {stage.title!r}: give one a name of its own"
            if stage.base and stage.base not in seen:
                return f"from = {stage.base!r} is no earlier stage{meant(stage.base, seen)}"
            chained = stage.base not in ("", first.title)
            if chained and (extra := stage.model_fields_set.intersection(_OF_CROPS)):
                return (
                    f"stage {stage.title!r} sees the crops of {stage.base!r}: leave out "
                    f"{min(extra)}, or from"
                )
            if stage.turn and not chained:
                return f"turn of stage {stage.title!r} needs from: the stage whose class says so"
            seen.append(stage.title)
        return None

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models, each once, that of the detector first."""
        return tuple(dict.fromkeys(stage.model for stage in self.stages))

    def bind(
        self, engines: Mapping[str, Engine], ask: Ask, most: int
    ) -> Callable[[ImageRequest], Results]:
        """Check that the models fit, and return the call that answers images; raises as `bound`."""
        first, stages = self.stages[0], self._bound({n: e.card for n, e in engines.items()})
        return PipelineRun((first.title, first.model), stages, ask, most)

    def described(self, cards: Mapping[str, EngineCard]) -> tuple[StageRow, ...]:
        """Return the stages for people; raises as `bound`."""
        first, stages = self.stages[0], self._bound(cards)
        rows = [(first, "the image", cards[first.model].task)]
        rows += [(each.table, each.sees, each.field) for each in stages]
        return tuple(
            {"name": table.title, "model": table.model, "sees": sees, "gives": gives}
            for table, sees, gives in rows
        )

    @property
    def reference(self) -> str:
        """Describe its reference; empty without one. Raises as `PipelineCard.read`."""
        card = PipelineCard.read(self._folder)
        return "" if card is None else card.text

    def engines(self) -> Iterator[tuple[str, StageEngine]]:
        """Yield the names of its stages, and the engines that are to be served for them."""
        first, *later = self.stages
        root = self._folder.parent
        if (root / first.model / PIPELINE_FILE).is_file():
            yield from Pipeline.read(root / first.model).engines()
        else:
            later = self.stages
        for stage in later:
            yield stage.title, _engine(ModelRepository(root), stage.model)

    def _bound(self, cards: Mapping[str, EngineCard]) -> tuple[BoundStage, ...]:
        first, *later = self.stages
        stages: dict[str, BoundStage] = {}
        for stage in later:
            base = stages.get(stage.base)
            stages[stage.title] = bound(stage, cards, first.model, base)
        return tuple(stages.values())


def check_reference(folder: Path) -> None:
    """Refuse, as InvalidOption, the reference of a pipeline that other engines have made."""
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
            f"{'; '.join(replaced)}: `fovea build --pipeline {folder.name} --images DIR --check` "
            f"says how much the answers have changed, on the images of {card.images_from}"
        )


def _engine(repository: ModelRepository, model: str) -> StageEngine:
    served = repository.served(model)
    if not served:
        raise NotFound(f"there is no model '{model}'")
    file = repository.folder(model, served[-1]) / CARD_FILE
    # One that Fovea has not built has no card.
    key = EngineCard.read(file).content_key if file.is_file() else ""
    return StageEngine(model=model, version=served[-1], key=key)


def _key(field: str) -> str:
    known = StageTable.model_fields.get(field)
    return (known and known.alias) or field


def _wrong(error: ValidationError) -> str:
    """Describe the first fault, with the key that an unknown one may mean."""
    # Where a key is missing, its name may be misspelt.
    first, *_ = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    match first["loc"]:
        case ("stages",) | ("stages", int()):
            return "write a table [[stages]] for each stage, two or more of them"
        case ("stages", int() as number, *_):
            keys = [_key(name) for name in StageTable.model_fields]
            return f"stage {number + 1}: {key_fault(first, keys)}"
    return key_fault(first, Pipeline.model_fields)
