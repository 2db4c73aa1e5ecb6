"""Reads pipeline.toml: the stages of a pipeline as they are written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fovea_engines.engine import Engine
from fovea_pipelines.run import Ask, PipelineRun, Results
from fovea_pipelines.stages import BoundStage, bound
from fovea_preprocess.errors import InvalidModel
from fovea_server.tensors.image_messages import ImageRequest

FILE = "pipeline.toml"

# Keys that say which part of the image a stage sees; a stage on the crops of another has none.
_OF_CROPS = ("crop", "padding", "min_size")


class StageTable(BaseModel):
    """A table `[[stages]]`: a model, and the crops that it sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    name: str = ""
    base: str = Field("", alias="from")
    classes: tuple[str | int, ...] = ()
    least_score: float = Field(0.0, alias="if", ge=0, le=1)
    min_size: int = Field(1, ge=1)
    padding: float = Field(0.0, ge=0, le=2)
    crop: Literal["box", "rotated", "keypoints"] = "box"
    turn: Mapping[str, float] = {}
    top_k: int | None = Field(None, ge=1, le=1000)
    to: Literal["attributes", "text", "embedding", "classes", ""] = ""

    @property
    def title(self) -> str:
        """Return its name, by default that of its model."""
        return self.name or self.model


class Pipeline(BaseModel):
    """The file; the server's table `fovea.folders` names this class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: tuple[StageTable, ...] = Field(min_length=2)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of a model's folder; InvalidModel says what is wrong with it."""
        path = folder / FILE
        try:
            read = cls.model_validate(tomllib.loads(path.read_text("utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidModel(f"{path} is not TOML: {error}") from error
        except ValidationError as error:
            raise InvalidModel(f"{path}: {_fault(error)}") from error
        if (fault := read._fault()) is not None:
            raise InvalidModel(f"{path}: {fault}")
        return read

    def _fault(self) -> str | None:
        first, *later = self.stages
        if extra := first.model_fields_set - {"model", "name"}:
            key = _key(min(extra))
            return f"{key} is not for the first stage, which sees the whole image: leave it out"
        seen = [first.title]
        for stage in later:
            if stage.title in seen:
                return f"two stages are called {stage.title!r}: give one a name of its own"
            if stage.base and stage.base not in seen:
                return f"from = {stage.base!r} is no earlier stage{_meant(stage.base, seen)}"
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
        """Check that the models fit, and return the call that answers images.

        Raises as `bound`.
        """
        first, *later = self.stages
        stages: dict[str, BoundStage] = {}
        for stage in later:
            base = stages.get(stage.base)
            stages[stage.title] = bound(stage, engines, first.model, base)
        return PipelineRun((first.title, first.model), tuple(stages.values()), ask, most)


def _key(field: str) -> str:
    known = StageTable.model_fields.get(field)
    return (known and known.alias) or field


def _fault(error: ValidationError) -> str:
    """Describe the first fault, with the key that an unknown one may mean."""
    # Where a key is missing, its name may be misspelt.
    first, *_ = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = [each + 1 if isinstance(each, int) else each for each in first["loc"]]
    where = " ".join(map(str, place)).replace("stages ", "stage ")
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg']}"
    keys = [_key(name) for name in (StageTable if len(place) > 1 else Pipeline).model_fields]
    return f"{where} is not a key{_meant(str(place[-1]), keys)}"


def _meant(given: str, known: list[str]) -> str:
    close = get_close_matches(given, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f": there are {', '.join(known)}"
