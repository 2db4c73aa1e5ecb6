"""Checks a later stage of a pipeline against the models, and chooses what it sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_engines.results.class_names import resolve_classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.findings import FAILED, Finding
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption
from fovea_server.pipelines.crops import (
    Pixels,
    box_crop,
    corner_order,
    point_crop,
    rotated_crop,
    smaller,
)

if TYPE_CHECKING:
    from fovea_server.pipelines.recipe import StageTable

# Of an image, that crops of it may have together.
_MAX_PIXELS = 2
# Values of crops that are read as they are; of more, those from which a model's input is made by
# far are cut out of a smaller image, whose sides are still so many times the input's.
_MAX_READ, _FINER = 1 << 30, 2
_FINDS = ("detect", "segment", "pose", "obb", "text")
# Task of a stage's model -> where its answer may go, the usual place first.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "attributes": ("attributes",),
    "classify": ("classes", "attributes"),
    "embed": ("embedding",),
    "read": ("text",),
}


@dataclass(frozen=True, slots=True)
class BoundStage:
    """A stage whose model is known.

    Attributes:
        base: the stage on whose crops it runs; empty for the detector's objects.
        classes: ids of the classes that it is for, of the detector or of the base; None for all.
        size: (width, height) of the model's input.
        turn: id of a class of the base -> the score from which a crop is turned upside down.
        field: of an object, where the answer goes.
        order: indices of the detector's four points, clockwise from the top left; None where they
            are not named so.
    """

    table: StageTable
    base: str
    classes: frozenset[int] | None
    size: tuple[int, int]
    turn: Mapping[int, float]
    field: str
    order: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return self.table.title

    @property
    def sees(self) -> str:
        """Say what of an image it sees."""
        table = self.table
        names = ", ".join(map(str, table.classes))
        if self.base:
            sees = f"crops of {self.base}"
        else:
            sees = "by points" if table.crop == "keypoints" else f"{table.crop} crops"
        parts = [
            sees,
            f"classes {names}" if names else "",
            f"score {table.least_score:g} or more" if table.least_score else "",
            f"{table.min_size} pixels or more" if table.min_size > 1 else "",
            f"padding {table.padding:g}" if table.padding else "",
            *(f"upside down at {key} {least:g}" for key, least in table.turn.items()),
        ]
        return "; ".join(filter(None, parts))

    def crops(self, pixels: Pixels, found: Detections) -> dict[int, Pixels]:
        """Cut out the objects that it is for, by index."""
        sides = found.boxes[:, 2:] - found.boxes[:, :2]
        wanted = (found.scores >= self.table.least_score) & (
            sides.min(axis=1) >= self.table.min_size
        )
        if self.classes is not None:
            wanted &= np.isin(found.class_ids, list(self.classes))
        match self.table.crop:
            case "box":
                cut = partial(box_crop, padding=self.table.padding)
            case "rotated":
                assert found.rotated is not None, "the stage was checked"
                # Boxes that lie on each other, or far over the edge, would fill the memory.
                area = (
                    found.rotated[wanted, 2:4].prod(axis=1).sum()
                    * (1 + 2 * self.table.padding) ** 2
                )
                scale = min(1.0, math.sqrt(_MAX_PIXELS * pixels[..., 0].size / max(1.0, area)))
                cut = partial(rotated_crop, padding=self.table.padding, scale=scale)
            case "keypoints":
                cut = partial(point_crop, size=self.size, order=self.order)
        crops = {index: cut(pixels, found, index) for index in np.flatnonzero(wanted).tolist()}
        size = sum(each.size for each in crops.values())
        if self.table.crop == "box" and size <= pixels.size:
            # The image, which views of it would keep, takes more.
            return {index: crop.copy() for index, crop in crops.items()}
        if self.table.crop == "box" and size > _MAX_READ:
            return self._coarser(crops, pixels, found)
        return crops

    def _coarser(
        self, crops: Mapping[int, Pixels], pixels: Pixels, found: Detections
    ) -> dict[int, Pixels]:
        """Cut large crops out of an image that is made smaller once, not each by its model."""
        wide, high = (_FINER * side for side in self.size)
        coarse: dict[int, Pixels] = {1: pixels}
        coarser: dict[int, Pixels] = {}
        for index, crop in crops.items():
            times = max(1, min(crop.shape[1] // wide, crop.shape[0] // high))
            times = 1 << times.bit_length() - 1
            if times not in coarse:
                coarse[times] = smaller(pixels, times)
            boxes = replace(found, boxes=found.boxes / times)
            coarser[index] = box_crop(coarse[times], boxes, index, self.table.padding)
        return coarser

    def of_base(self, crop: Pixels, said: Finding) -> Pixels | None:
        """Return the crop of its base as it sees it; None if it is not for such an object."""
        likely = {} if said.found is None else said.found.likely
        if any(likely.get(each, -1.0) >= least for each, least in self.turn.items()):
            crop = crop[::-1, ::-1].copy()
        if self.classes is None and not self.table.least_score:
            return crop
        chosen = [likely[each] for each in likely if self.classes is None or each in self.classes]
        return crop if max(chosen, default=-1.0) >= self.table.least_score else None

    def finding(self, engine: Engine, answer: TaskResult) -> Finding:
        """Make the finding of an object."""
        words = engine.vocabulary()
        return Finding(self.name, self.field, answer, words, answer.caption(words.labels))

    def failed(self, error: FoveaError) -> Finding:
        """Make the finding of an object whose crop failed."""
        text = f"stage '{self.name}': {error}"
        return Finding(self.name, self.field, caption=FAILED, error=(error.code, text))


def bound(
    table: StageTable, cards: Mapping[str, EngineCard], first: str, base: BoundStage | None
) -> BoundStage:
    """Check a stage against the detector, or the stage on whose crops it runs, and its own model.

    InvalidModel says what does not fit.
    """
    detector = _card(cards, first)
    if (task := _task(detector)) not in _FINDS:
        raise InvalidModel(
            f"the first stage runs '{first}', whose task is {task}: name a model that finds "
            f"objects ({', '.join(_FINDS)})"
        )
    about, card = f"stage '{table.title}': ", _card(cards, table.model)
    places = _PLACES.get(task := _task(card))
    if places is None:
        raise InvalidModel(
            f"{about}the task of '{table.model}' is {task}: after the first stage, name a model "
            f"for {', '.join(_PLACES)}"
        )
    if table.to and table.to not in places:
        raise InvalidModel(
            f"{about}the answer of '{table.model}' cannot go to {table.to}: write to = "
            f"'{places[0]}', or leave it out"
        )
    if table.top_k is not None and task not in ("attributes", "classify"):
        raise InvalidModel(f"{about}top_k has no effect on a model for {task}: leave it out")
    _check_crop(about, table, detector)
    giver = detector if base is None else _card(cards, base.table.model)
    if base is not None and base.field in ("embedding", "text"):
        raise InvalidModel(f"{about}'{base.name}' finds no classes to go by: leave from out")
    try:
        classes = _ids(tuple(table.classes), giver)
        turn = {next(iter(_ids((name,), giver))): least for name, least in table.turn.items()}
    except InvalidOption as error:
        raise InvalidModel(f"{about}{error}") from error
    spec = card.preprocess
    assert spec is not None, "it takes images"
    return BoundStage(
        table,
        "" if base is None else base.name,
        classes if table.classes else None,
        (spec.width, spec.height),
        turn,
        table.to or places[0],
        None if detector.skeleton is None else corner_order(detector.skeleton.names),
    )


def _card(cards: Mapping[str, EngineCard], name: str) -> EngineCard:
    card = cards.get(name)
    if card is None or card.preprocess is None:
        raise InvalidModel(f"model '{name}' takes no images: name one that does")
    return card


def _task(card: EngineCard) -> str:
    return "tensors" if card.family is None else card.task


def _check_crop(about: str, table: StageTable, detector: EngineCard) -> None:
    if table.crop == "rotated" and _task(detector) not in ("obb", "text"):
        raise InvalidModel(f"{about}'{detector.name}' has no rotated boxes: crop = 'box'")
    if table.crop == "keypoints":
        skeleton = detector.skeleton
        count = 0 if skeleton is None else len(skeleton.names)
        if count not in (4, 5):
            raise InvalidModel(
                f"{about}crop = 'keypoints' takes four points, or the five of a face, and "
                f"'{detector.name}' finds {count}: crop = 'box'"
            )


def _ids(classes: tuple[str | int, ...], card: EngineCard) -> frozenset[int]:
    options = PredictOptions(classes=classes)
    count = card.num_classes or (len(card.labels) if card.labels else None)
    known = resolve_classes(options, card.labels, card.name, count)
    return frozenset(each for each in known.classes or () if isinstance(each, int))
