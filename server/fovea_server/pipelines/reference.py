"""Stores the results of a pipeline on images as a reference, and compares new results with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.repository.card import StageAgreement
from fovea_engines.results.detections import Detections
from fovea_engines.results.stage_results import StageResult
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.text import counted

REFERENCE_FILE = "reference.json"

# Agreement below which the report shows the worst example. The agreement of equal embeddings is
# slightly below 1, because of float32 rounding.
_SHOWN = 0.9995

_MAX = float(np.finfo(np.float32).max)
_Number = Annotated[float, Field(ge=-_MAX, le=_MAX, allow_inf_nan=False)]
_Id = Annotated[int, Field(ge=0, lt=1 << 31)]


def reference_path(folder: Path) -> Path:
    """Return the path of the reference in a pipeline's directory.

    Raises:
        InvalidModel: the path exists but is not a regular file.
    """
    path = folder / REFERENCE_FILE
    # A named pipe in this place could block the reader forever.
    if path.exists() and not path.is_file():
        raise InvalidModel(f"{path} is not a regular file: rename or remove it")
    return path


class _Comparison(NamedTuple):
    agreement: float
    example: str
    renamed: str


class StageEngine(BaseModel):
    """The engine that ran for a stage. `key` is the content key in its card.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    version: int
    key: str

    def text(self, before: Self | None) -> str:
        """Describe this engine, and the engine `before` that it replaced."""
        text = f"{self.model} version {self.version}"
        if before is None or (before.model, before.key) == (self.model, self.key):
            return text
        if (before.model, before.version) == (self.model, self.version):
            return f"{text}, built again"
        was = f"{before.model} " if before.model != self.model else ""
        return f"{text}, was {was}version {before.version}"

    def undo(self, before: Self | None) -> str:
        """Return the command that restores the previous version, or "" if there is none."""
        if before is None or before.model != self.model or before.version == self.version:
            return ""
        return f"fovea promote {self.model} {before.version}"


class StageOutput(BaseModel):
    """The result of a stage on a crop: kind and arrays. Both are empty if the crop failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    arrays: list[list[_Number | _Id]]
    caption: str

    @classmethod
    def of(cls, result: StageResult) -> Self:
        """Convert a `StageResult`."""
        found = result.found
        arrays = [] if found is None else [array.tolist() for array in found.arrays]
        kind = "" if found is None else type(found).__name__
        return cls(kind=kind, arrays=arrays, caption=result.caption)

    def compare(self, result: StageResult, image: str) -> _Comparison:
        """Compare this result with a new result of the same stage."""
        try:
            agreement, words = self._measure_shared(result.found, result.vocabulary.labels)
        except (ValueError, IndexError, OverflowError):  # arrays of another model may not fit
            agreement, words = 0.0, self.caption
        change = f"{self.caption!r}, now {result.caption!r}, on {image}"
        if result.caption in (self.caption, words):
            renamed = "" if result.caption == self.caption else f"names changed: {change}"
            return _Comparison(agreement, f"{agreement:.3f}, on {image}", renamed)
        return _Comparison(agreement, change, "")

    def _measure_shared(
        self, found: TaskResult | None, labels: Sequence[str] | None
    ) -> tuple[float, str]:
        """Compare a new result with this one.

        Returns:
            The agreement (0 to 1), and the caption of the old result with the current class names.
        """
        if found is None or type(found).__name__ != self.kind:
            return 0.0, self.caption
        pairs = zip(self.arrays, found.arrays, strict=True)
        before = found.holding([np.array(old, new.dtype) for old, new in pairs])
        shared = before.similarity(found)
        if shared is None:
            shared = float(before.likely.keys() == found.likely.keys())
        return shared, before.caption(labels)


class SeenImage(BaseModel):
    """The objects in an image, best first, with each object's stage results by stage name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    boxes: list[tuple[_Number, _Number, _Number, _Number]]
    scores: list[_Number]
    class_ids: list[_Id]
    rotated: list[tuple[_Number, _Number, _Number, _Number, _Number]] | None
    keypoints: list[list[tuple[_Number, _Number, _Number]]] | None
    said: list[dict[str, StageOutput]]

    @classmethod
    def of(cls, name: str, sha256: str, found: Detections) -> Self:
        """Convert the result of a pipeline for an image."""
        outputs = [
            {each.stage: StageOutput.of(each) for each in one} for one in found.stage_results or ()
        ]
        return cls(
            name=name,
            sha256=sha256,
            boxes=found.boxes.tolist(),
            scores=found.scores.tolist(),
            class_ids=found.class_ids.tolist(),
            rotated=None if found.rotated is None else found.rotated.tolist(),
            keypoints=None if found.keypoints is None else found.keypoints.tolist(),
            said=outputs,
        )

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        rows = (self.scores, self.class_ids, self.said, self.rotated, self.keypoints)
        if any(each is not None and len(each) != len(self.boxes) for each in rows):
            raise ValueError("the lists of an image have different lengths")
        if len(set(map(len, self.keypoints or ()))) > 1:
            raise ValueError("the objects of an image have different numbers of keypoints")
        return self

    def objects(self, now: Detections) -> Detections:
        """Return the objects without stage results.

        If `now` has a different number of keypoints, the keypoints are left out.
        """
        rotated, points = (
            None if rows is None else np.array(rows, np.float32)
            for rows in (self.rotated, self.keypoints)
        )
        if points is not None and now.keypoints is not None:
            points = points if points.shape[1:] == now.keypoints.shape[1:] else None
        return Detections(
            boxes=np.array(self.boxes, np.float32).reshape(-1, 4),
            scores=np.array(self.scores, np.float32),
            class_ids=np.array(self.class_ids, np.int32),
            rotated=rotated,
            keypoints=points,
        )


class PipelineCard(BaseModel):
    """The reference of a pipeline: its results on images, and its engines by stage name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    created: datetime
    images_from: str
    stages: dict[str, StageEngine] = Field(min_length=2)
    images: list[SeenImage] = Field(min_length=1)

    @classmethod
    def of(
        cls, images_from: str, stages: Mapping[str, StageEngine], images: Sequence[SeenImage]
    ) -> Self:
        """Make a reference from new results, with the current time."""
        now = datetime.now(UTC).replace(microsecond=0)
        return cls(created=now, images_from=images_from, stages=dict(stages), images=list(images))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the reference in a pipeline's directory, or return None if there is none.

        Raises:
            InvalidModel: the file is damaged or cannot be read.
        """
        path = reference_path(folder)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise InvalidModel(
                f"{path} is damaged, or from another version of Fovea ({where}: {first['msg']}): "
                f"create it again with `fovea build --pipeline {folder.name} --images DIR`"
            ) from error

    @property
    def objects(self) -> int:
        """Return the number of objects whose score is at least the default minimum score."""
        return sum(score >= CONF for each in self.images for score in each.scores)

    @property
    def text(self) -> str:
        """Return a line of text with the reference's number of objects, images and time."""
        objects = counted(self.objects, "object")
        images = counted(len(self.images), "image")
        return f"{objects} on {images} of {self.images_from}, {self.created:%Y-%m-%d %H:%M} UTC"

    def agreement(
        self, engines: Mapping[str, StageEngine], found: Sequence[Detections]
    ) -> Iterator[StageAgreement]:
        """Yield for each stage how well its new results agree with the reference.

        A later stage is compared only on objects that it processed in both runs. If an earlier
        stage changes and passes other objects, the agreement of the later stage is not lower.
        """
        first, *later = engines
        pairs = [
            (image, now, match(image.objects(now), now, CONF, MARGIN))
            for image, now in zip(self.images, found, strict=True)
        ]
        missed, extra = (sum(getattr(m, name) for *_, m in pairs) for name in ("missed", "extra"))
        total, lost = (sum(getattr(m, name) for *_, m in pairs) for name in ("total", "lost"))
        yield StageAgreement(
            first,
            engines[first].text(self.stages.get(first)),
            self.objects,
            1 - lost / total if total else 1.0,
            f"{missed} missed, {extra} extra" if missed or extra else "",
            engines[first].undo(self.stages.get(first)),
        )
        for name in later:
            comparisons, alone = list[_Comparison](), 0
            for image, now, m in pairs:
                for i, j in zip(m.want.tolist(), m.have.tolist(), strict=True):
                    if image.scores[i] < CONF:
                        continue
                    before = image.said[i].get(name)
                    after = next((f for f in (now.stage_results or ())[j] if f.stage == name), None)
                    if before is not None and after is not None:
                        comparisons.append(before.compare(after, image.name))
                    else:
                        alone += before is not after
            worst = min(comparisons, default=_Comparison(1.0, "", ""))
            notes = [worst.example] * (worst.agreement < _SHOWN)
            notes += sorted(each.renamed for each in comparisons if each.renamed)[:1]
            notes += [f"{alone} with a result only then or only now"] * (alone > 0)
            yield StageAgreement(
                name,
                engines[name].text(self.stages.get(name)),
                len(comparisons),
                sum(each.agreement for each in comparisons) / len(comparisons)
                if comparisons
                else float(not alone),
                "; ".join(notes),
                engines[name].undo(self.stages.get(name)),
            )
