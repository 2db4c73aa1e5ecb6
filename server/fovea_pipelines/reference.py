"""Keeps what a pipeline finds on images as its reference, and compares with it later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fovea_engines.detect.detections import Detections, Finding
from fovea_engines.evaluate.agreement.matching import CONF, MARGIN, match
from fovea_engines.repository.card import StageAgreement
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.plural import counted

FILE = "reference.json"

# Directions of vectors that are equal differ by the rounding of float32.
_SHOWN = 0.9995


class StageEngine(BaseModel):
    """The engine that answered for a stage."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    version: int
    key: str

    def text(self, before: Self | None) -> str:
        """Describe it, and the one that it has replaced."""
        text = f"{self.model} version {self.version}"
        if before is None or (before.model, before.key) == (self.model, self.key):
            return text
        if (before.model, before.version) == (self.model, self.version):
            return f"{text}, built again"
        was = f"{before.model} " if before.model != self.model else ""
        return f"{text}, was {was}version {before.version}"


class Said(BaseModel):
    """The result of a stage on a crop: the arrays of a value of this kind; none where it failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    arrays: list[list[float | int]]
    caption: str

    @classmethod
    def of(cls, finding: Finding) -> Self:
        """Take what a stage has found."""
        found = finding.found
        arrays = [] if found is None else [array.tolist() for array in found.arrays]
        kind = "" if found is None else type(found).__name__
        return cls(kind=kind, arrays=arrays, caption=finding.caption)

    def agreement(self, finding: Finding) -> float:
        """Return how far a stage finds the same now, 0 to 1."""
        found = finding.found
        if found is None or type(found).__name__ != self.kind:
            return 0.0
        try:
            pairs = zip(self.arrays, found.arrays, strict=True)
            before = found.holding([np.array(old, new.dtype) for old, new in pairs])
            shared = before.shared(found)
        except ValueError:  # of another network, whose arrays have other lengths
            return 0.0
        return float(before.likely.keys() == found.likely.keys()) if shared is None else shared


class SeenImage(BaseModel):
    """The objects on an image, best first, and what the stages said of each, by their names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    boxes: list[list[float]]
    scores: list[float]
    class_ids: list[int]
    rotated: list[list[float]] | None
    keypoints: list[list[list[float]]] | None
    said: list[dict[str, Said]]

    @classmethod
    def of(cls, name: str, sha256: str, found: Detections) -> Self:
        """Take what a pipeline finds."""
        said = [{each.stage: Said.of(each) for each in one} for one in found.findings or ()]
        return cls(
            name=name,
            sha256=sha256,
            boxes=found.boxes.tolist(),
            scores=found.scores.tolist(),
            class_ids=found.class_ids.tolist(),
            rotated=None if found.rotated is None else found.rotated.tolist(),
            keypoints=None if found.keypoints is None else found.keypoints.tolist(),
            said=said,
        )

    @property
    def objects(self) -> Detections:
        """Return the objects without what was said of them."""
        rotated, points = (
            None if rows is None else np.array(rows, np.float32)
            for rows in (self.rotated, self.keypoints)
        )
        return Detections(
            boxes=np.array(self.boxes, np.float32).reshape(-1, 4),
            scores=np.array(self.scores, np.float32),
            class_ids=np.array(self.class_ids, np.int32),
            rotated=rotated,
            keypoints=points,
        )


class PipelineCard(BaseModel):
    """The findings of a pipeline, and the engines that it ran, by the names of its stages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    created: datetime
    images_from: str
    stages: dict[str, StageEngine]
    images: list[SeenImage]

    @classmethod
    def of(
        cls, images_from: str, stages: Mapping[str, StageEngine], images: Sequence[SeenImage]
    ) -> Self:
        """Make the card of what was found just now."""
        now = datetime.now(UTC).replace(microsecond=0)
        return cls(created=now, images_from=images_from, stages=dict(stages), images=list(images))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the card of a pipeline's folder, None without; InvalidModel if it is damaged."""
        try:
            return cls.model_validate_json((folder / FILE).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise InvalidModel(
                f"{folder / FILE} is damaged ({error.errors()[0]['msg']}): remove it, and make it "
                f"again with `fovea build --pipeline {folder.name} --images DIR`"
            ) from error

    @property
    def text(self) -> str:
        """Describe it in a line."""
        sure = sum(score >= CONF for each in self.images for score in each.scores)
        objects = counted(sure, "object")
        images = counted(len(self.images), "image")
        return f"{objects} on {images} of {self.images_from}, {self.created:%Y-%m-%d %H:%M} UTC"

    def agreement(
        self, engines: Mapping[str, StageEngine], found: Sequence[Detections]
    ) -> Iterator[StageAgreement]:
        """Yield for each stage how far it finds the same now on the same images.

        A later stage is compared on the objects that it saw then and now: where others decide
        otherwise what it sees, that does not count as its own.
        """
        first, *later = engines
        pairs = [
            (image, now, match(image.objects, now, CONF, MARGIN))
            for image, now in zip(self.images, found, strict=True)
        ]
        missed, extra = (sum(getattr(m, name) for *_, m in pairs) for name in ("missed", "extra"))
        both = sum(len(m.want) for *_, m in pairs)
        total, lost = (sum(getattr(m, name) for *_, m in pairs) for name in ("total", "lost"))
        yield StageAgreement(
            first,
            engines[first].text(self.stages.get(first)),
            both + missed,
            1 - lost / total if total else 1.0,
            f"{missed} missed, {extra} extra" if missed or extra else "",
        )
        for name in later:
            told, alone = list[_Told](), 0
            for image, now, m in pairs:
                for i, j in zip(m.want.tolist(), m.have.tolist(), strict=True):
                    before = image.said[i].get(name)
                    after = next((f for f in (now.findings or ())[j] if f.stage == name), None)
                    if before is not None and after is not None:
                        told.append(_Told.of(before, after, image.name))
                    else:
                        alone += before is not after
            worst = min(told, default=_Told(1.0, ""))
            said = [worst.example] * (worst.agreement < _SHOWN)
            said += [f"{alone} seen only then or only now"] * (alone > 0)
            yield StageAgreement(
                name,
                engines[name].text(self.stages.get(name)),
                len(told),
                sum(each.agreement for each in told) / len(told) if told else 1.0,
                "; ".join(said),
            )


class _Told(NamedTuple):
    agreement: float
    example: str

    @classmethod
    def of(cls, before: Said, after: Finding, image: str) -> Self:
        """Compare what a stage says of an object."""
        agreement = before.agreement(after)
        change = f"{agreement:.3f}"
        if before.caption != after.caption:
            change = f"{before.caption!r}, now {after.caption!r}"
        return cls(agreement, f"{change}, on {image}")
