"""Checks a later stage of a pipeline against the models, and cuts the crops for the stage."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_engines.results.class_names import resolve_classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import corners
from fovea_engines.results.stage_results import FAILED, StageResult
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption

if TYPE_CHECKING:
    from fovea_server.pipelines.recipe import StageTable

Pixels = NDArray[np.uint8]

# Positions of the eyes, the tip of the nose and the corners of the mouth in a crop of 112 x 112
# pixels. ArcFace and later face models were trained on faces that were aligned to these positions.
_FACE = np.array(
    [
        [38.2946, 51.6963],
        [73.5318, 51.5014],
        [56.0252, 71.7366],
        [41.5493, 92.3655],
        [70.7299, 92.2041],
    ]
)
_FACE_SIDE = 112
# Maps the words in a corner's name to the number of the corner, clockwise from the top left.
_CORNERS = {
    frozenset(vocabulary.split()): number
    for number, names in enumerate(
        (
            ("top left", "upper left", "tl", "lt"),
            ("top right", "upper right", "tr", "rt"),
            ("bottom right", "lower right", "br", "rb"),
            ("bottom left", "lower left", "bl", "lb"),
        )
    )
    for vocabulary in names
}
# Ratio of height to width. A taller crop is rotated by 90 degrees, because text runs along the
# longer side.
_UPRIGHT = 1.5

# Largest total number of pixels of rotated crops, divided by the number of pixels of the image.
_MAX_PIXELS = 2
# Largest total number of values in box crops at full resolution. If there are more, large crops are
# cut from a downscaled image. The sides of such crops have at least `_FINER` times the length of
# the sides of the model's input.
_MAX_READ, _FINER = 1 << 30, 2
_FINDS = ("detect", "segment", "pose", "obb", "text")
# Maps the task of a stage's model to the object fields that may hold the result, the default first.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "attributes": ("attributes",),
    "classify": ("classes", "attributes"),
    "embed": ("embedding",),
    "read": ("text",),
}


def box_crop(pixels: Pixels, found: Detections, index: int, padding: float) -> Pixels:
    """Return the crop of an upright box as a view of the image.

    `padding` is the width of a border around the box, as a fraction of the box's sides. The crop
    ends at the edge of the image.
    """
    # Round the box like the response does, so that clients can cut the same crop.
    x1, y1, x2, y2 = (round(each, 2) for each in found.boxes[index].tolist())
    wide, high = padding * (x2 - x1), padding * (y2 - y1)
    left, top = max(0, math.floor(x1 - wide)), max(0, math.floor(y1 - high))
    return pixels[top : math.ceil(y2 + high), left : math.ceil(x2 + wide)]


def smaller(pixels: Pixels, times: int) -> Pixels:
    """Return an image whose sides are divided by `times`. Each new pixel is an average."""
    made = cv2.resize(pixels, None, fx=1 / times, fy=1 / times, interpolation=cv2.INTER_AREA)
    return made.astype(np.uint8, copy=False)


def rotated_crop(
    pixels: Pixels, found: Detections, index: int, padding: float, *, scale: float = 1.0
) -> Pixels:
    """Return the crop of a rotated box.

    The crop is rotated by the smallest angle that makes its sides upright, and text runs from left
    to right in it. `scale` is the size of the crop divided by its size in the image.
    """
    assert found.rotated is not None, "the stage was checked"
    row = found.rotated[index : index + 1].astype(np.float64)
    row[:, 2:4] *= 1 + 2 * padding
    outline = _top_first(corners(row)[0])
    wide = max(1, round(scale * float(np.hypot(*(outline[1] - outline[0])))))
    high = max(1, round(scale * float(np.hypot(*(outline[3] - outline[0])))))
    crop = _warp(pixels, outline, (wide, high))
    return np.ascontiguousarray(np.rot90(crop)) if high >= _UPRIGHT * wide else crop


def corner_order(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the indices of four corner points, which are found by the names of the points.

    Returns:
        Indices, clockwise from the top left. None if the names do not identify four corners.
    """
    corners = [_CORNERS.get(frozenset(re.split(r"[\W_]+", name.lower()))) for name in names]
    if set(corners) != {0, 1, 2, 3} or len(corners) != 4:
        return None
    return tuple(corners.index(each) for each in range(4))


def point_crop(
    pixels: Pixels,
    found: Detections,
    index: int,
    size: tuple[int, int],
    order: tuple[int, ...] | None = None,
) -> Pixels:
    """Return the perspective crop of a quadrilateral, or the aligned crop of a face.

    A quadrilateral has four points. A face has five points, and its proportions do not change.

    Args:
        pixels: pixels of the image, uint8 [height, width, 3].
        found: detections with keypoints.
        index: index of the object.
        size: (width, height) of the crop.
        order: indices of the four points, clockwise from the top left. If None, the side whose
            direction is closest to the right is the top.
    """
    assert found.keypoints is not None, "the stage was checked"
    points = found.keypoints[index, :, :2].astype(np.float64)
    if len(points) == 4:
        outline = _top_first(_clockwise(points)) if order is None else points[list(order)]
        return _warp(pixels, outline, size)
    wanted = _FACE * np.divide(size, _FACE_SIDE)
    matrix = _similarity(points, wanted)
    return cv2.warpAffine(pixels, matrix, size).astype(np.uint8, copy=False)


def _clockwise(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points in clockwise order around their mean position."""
    x, y = (points - points.mean(axis=0)).T
    around: NDArray[np.float64] = points[np.argsort(np.arctan2(y, x))]
    return around


def _top_first(outline: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate a clockwise list of corners.

    Afterwards, the direction of the first side is closer to the right than the other sides.
    """
    sides = np.roll(outline, -1, axis=0) - outline
    lengths = np.maximum(np.hypot(*sides.T), np.finfo(np.float64).tiny)
    return np.roll(outline, -int(np.argmax(sides[:, 0] / lengths)), axis=0)


def _warp(pixels: Pixels, outline: NDArray[np.float64], size: tuple[int, int]) -> Pixels:
    wide, high = size
    target = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32)
    matrix = cv2.getPerspectiveTransform(outline.astype(np.float32), target)
    crop = cv2.warpPerspective(
        pixels, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return crop.astype(np.uint8, copy=False)


def _similarity(points: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation, scale and shift from `points` to `wanted` as a matrix [2, 3].

    The transformation has the smallest sum of squared errors.
    """
    x, y = points.T
    one, none = np.ones_like(x), np.zeros_like(x)
    rows = np.concatenate([np.stack([x, -y, one, none], 1), np.stack([y, x, none, one], 1)])
    (a, b, right, down), *_ = np.linalg.lstsq(rows, wanted.T.ravel(), rcond=None)
    return np.array([[a, -b, right], [b, a, down]])


@dataclass(frozen=True, slots=True)
class BoundStage:
    """A stage with its model.

    Attributes:
        table: table of the stage in pipeline.toml.
        base: name of the stage whose crops this stage runs on; "" if it runs on the detector's
            objects.
        classes: class IDs (of the base or the detector) of the objects that the stage runs on; None
            for all.
        size: (width, height) of the model's input in pixels.
        turn: dict from class IDs of the base to minimum scores. From this score of a class on, the
            crop is rotated by 180 degrees.
        field: name of the object field that holds the result.
        order: indices of the detector's four keypoints, clockwise from the top left; None if the
            names of the keypoints do not identify corners.
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
        """Return the name of the stage."""
        return self.table.title

    @property
    def sees(self) -> str:
        """Return a description of the crops that the stage runs on."""
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
        """Return the crops of the objects that the stage runs on, by object index."""
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
                # Limit the total area. Boxes may overlap or extend far beyond the image, so their
                # crops could fill the memory.
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
            # Copy the crops, because a view keeps the whole image in memory.
            return {index: crop.copy() for index, crop in crops.items()}
        if self.table.crop == "box" and size > _MAX_READ:
            return self._coarser(crops, pixels, found)
        return crops

    def _coarser(
        self, crops: Mapping[int, Pixels], pixels: Pixels, found: Detections
    ) -> dict[int, Pixels]:
        """Cut large crops from a downscaled image.

        The image is downscaled once for all of its crops.
        """
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

    def cut_from_crop(self, crop: Pixels, base: StageResult) -> Pixels | None:
        """Return the crop of the base stage for this stage.

        The crop is rotated if a class in `turn` has the required score. If this stage does not run
        on the object, return None.
        """
        likely = {} if base.found is None else base.found.likely
        if any(likely.get(each, -1.0) >= least for each, least in self.turn.items()):
            crop = crop[::-1, ::-1].copy()
        if self.classes is None and not self.table.least_score:
            return crop
        chosen = [likely[each] for each in likely if self.classes is None or each in self.classes]
        return crop if max(chosen, default=-1.0) >= self.table.least_score else None

    def make_result(self, engine: Engine, answer: TaskResult) -> StageResult:
        """Convert the answer of the stage's model to the stage result of an object."""
        vocabulary = engine.vocabulary()
        return StageResult(
            self.name, self.field, answer, vocabulary, answer.caption(vocabulary.labels)
        )

    def make_failed_result(self, error: FoveaError) -> StageResult:
        """Return the stage result of an object for which the stage failed."""
        text = f"stage '{self.name}': {error}"
        return StageResult(self.name, self.field, caption=FAILED, error=(error.code, text))


def bind_stage(
    table: StageTable, cards: Mapping[str, EngineCard], first: str, base: BoundStage | None
) -> BoundStage:
    """Check that a stage fits the first model, the base stage and the stage's own model.

    Args:
        table: table of the stage in pipeline.toml.
        cards: card.json of all models, by model name.
        first: name of the first stage's model.
        base: stage whose crops this stage runs on; None if it runs on the objects of the first
            stage.

    Raises:
        InvalidModel: the models do not fit together. The message has the reason.
    """
    detector = _card(cards, first)
    if (task := _task(detector)) not in _FINDS:
        raise InvalidModel(
            f"the first stage runs '{first}', whose task is {task}: use a model that detects "
            f"objects ({', '.join(_FINDS)})"
        )
    about, card = f"stage '{table.title}': ", _card(cards, table.model)
    places = _PLACES.get(task := _task(card))
    if places is None:
        raise InvalidModel(
            f"{about}the task of '{table.model}' is {task}: after the first stage, use a model "
            f"for {', '.join(_PLACES)}"
        )
    if table.to and table.to not in places:
        raise InvalidModel(
            f"{about}the results of '{table.model}' cannot be stored in the field {table.to}: "
            f"set to = '{places[0]}', or remove `to`"
        )
    if table.top_k is not None and task not in ("attributes", "classify"):
        raise InvalidModel(f"{about}top_k has no effect on a model for {task}: remove it")
    _check_crop(about, table, detector)
    giver = detector if base is None else _card(cards, base.table.model)
    if base is not None and base.field in ("embedding", "text"):
        raise InvalidModel(
            f"{about}`from` needs a stage that returns classes, but '{base.name}' returns none: "
            "remove `from`"
        )
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
        raise InvalidModel(f"model '{name}' does not accept images: use a model that does")
    return card


def _task(card: EngineCard) -> str:
    return "tensors" if card.family is None else card.task


def _check_crop(about: str, table: StageTable, detector: EngineCard) -> None:
    if table.crop == "rotated" and _task(detector) not in ("obb", "text"):
        raise InvalidModel(f"{about}'{detector.name}' has no rotated boxes: use crop = 'box'")
    if table.crop == "keypoints":
        skeleton = detector.skeleton
        count = 0 if skeleton is None else len(skeleton.names)
        if count not in (4, 5):
            raise InvalidModel(
                f"{about}crop = 'keypoints' needs four keypoints, or the five of a face, but "
                f"'{detector.name}' returns {count}: use crop = 'box'"
            )


def _ids(classes: tuple[str | int, ...], card: EngineCard) -> frozenset[int]:
    options = PredictOptions(classes=classes)
    count = card.num_classes or (len(card.labels) if card.labels else None)
    known = resolve_classes(options, card.labels, card.name, count)
    return frozenset(each for each in known.classes or () if isinstance(each, int))
