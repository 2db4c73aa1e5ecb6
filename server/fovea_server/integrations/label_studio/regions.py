"""Turns what a model found on an image into regions of Label Studio, in per cents of its sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.class_names import class_name
from fovea_engines.results.detections import Detections
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap
from fovea_engines.results.mask_encoding import polygons
from fovea_engines.results.masks import Bitmap
from fovea_engines.results.rotated import corners
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.integrations.label_studio.brush import packed
from fovea_server.integrations.label_studio.config import Control, spelling
from fovea_server.integrations.label_studio.region_fields import Fields, control_value, fields_of
from fovea_server.tensors.image_messages import ImageResult

# Of a drawn point, per cents of the image.
_POINT = 0.6
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what was found, as one region shows it.

    Attributes:
        name: of its class or keypoint.
        score: None where the model has none.
        value: of the region, without its label.
        owner: index of the object that it is of; `_NOBODY` for none.
    """

    name: str
    score: float | None
    value: dict[str, Any]
    owner: int


def regions(
    result: ImageResult, words: Vocabulary, controls: Sequence[Control]
) -> list[dict[str, Any]]:
    """Return the regions that the controls have a label for, and what fills the other controls."""
    drawn: list[dict[str, Any]] = []
    boxes: dict[int, str] = {}
    found = result.found
    assert found is not None, "the task of the model is one that the controls have"
    whole, objects = fields_of(found, words)
    inside = [control for control in controls if control.per_region]
    # Rectangles first: the keypoints of an object belong to its own.
    for control in sorted(controls, key=lambda each: each.kind != "RectangleLabels"):
        if control.kind not in _PARTS:
            if not control.per_region and (answer := control_value(control, whole)) is not None:
                drawn.append(_region(control, result, *answer))
            continue
        for part in _PARTS[control.kind](found, words, (result.width, result.height)):
            label = control.labels.get(spelling(part.name))
            if label is None or (part.score is not None and part.score < control.threshold):
                continue
            value = {**part.value, control.value_key: [label]}
            region = _region(control, result, value, part.score)
            drawn.append(region)
            if control.kind == "KeyPointLabels":
                if part.owner in boxes:
                    region["parentID"] = boxes[part.owner]
                continue
            if control.kind == "RectangleLabels":
                boxes[part.owner] = region["id"]
            if part.owner in objects:
                drawn += _region_results(region, part, inside, objects[part.owner])
    return drawn


def _region_results(
    region: dict[str, Any], part: Part, controls: Sequence[Control], fields: Fields
) -> Iterator[dict[str, Any]]:
    """Yield the controls of a region as more results under its id; add its vector to it."""
    for control in controls:
        if (answer := control_value(control, fields)) is not None:
            value, score = answer
            kind = {"from_name": control.name, "type": control.value_key, "score": score}
            # Label Studio repeats the place in each result of a region.
            yield {**region, **kind, "value": {**part.value, **value}}
    if "embedding" in fields:
        region["meta"] = {"embedding": fields["embedding"]}


def _region(
    control: Control, result: ImageResult, value: dict[str, Any], score: float | None
) -> dict[str, Any]:
    region: dict[str, Any] = {
        "id": uuid4().hex[:10],
        "from_name": control.name,
        "to_name": control.to_name,
        "type": control.value_key,
        "original_width": result.width,
        "original_height": result.height,
        "image_rotation": 0,
        "value": value,
    }
    return region if score is None else {**region, "score": score}


def _rectangles(found: TaskResult, words: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    assert isinstance(found, Detections)
    if found.rotated is None:
        firsts, sides = found.boxes[:, :2], found.boxes[:, 2:] - found.boxes[:, :2]
        angles = np.zeros(len(found))
    else:
        # The first corner stays where it is when Label Studio turns the rectangle.
        firsts, sides = corners(found.rotated)[:, 0], found.rotated[:, 2:4]
        angles = np.degrees(found.rotated[:, 4]) % 360
    rows = zip(_percent(firsts, size), _percent(sides, size), angles.tolist(), strict=True)
    for index, ((x, y), (width, height), angle) in enumerate(rows):
        value = {"x": x, "y": y, "width": width, "height": height, "rotation": round(angle, 4)}
        yield Part(_name(found, words, index), _score(found, index), value, index)


def _polygons(found: TaskResult, words: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    if isinstance(found, Detections) and found.rotated is not None:
        for index, outline in enumerate(corners(found.rotated)):
            value = {"points": _percent(outline, size), "closed": True}
            yield Part(_name(found, words, index), _score(found, index), value, index)
        return
    for name, score, bitmap, owner in _bitmaps(found, words):
        for points in polygons(bitmap):
            outline = np.array(points).reshape(-1, 2)
            yield Part(name, score, {"points": _percent(outline, size), "closed": True}, owner)


def _brushes(found: TaskResult, words: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    for name, score, bitmap, owner in _bitmaps(found, words):
        mask = np.zeros((size[1], size[0]), np.uint8)
        rows, columns = bitmap.pixels.shape
        mask[bitmap.top : bitmap.top + rows, bitmap.left : bitmap.left + columns] = bitmap.pixels
        if mask.any():
            yield Part(name, score, {"format": "rle", "rle": packed(mask)}, owner)


def _keypoints(found: TaskResult, words: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    assert isinstance(found, Detections)
    if found.keypoints is None:
        return  # a capture without an object does not have them
    assert words.skeleton is not None
    for index, points in enumerate(found.keypoints):
        places = _percent(points[:, :2], size)
        for name, (x, y), score in zip(
            words.skeleton.names, places, points[:, 2].tolist(), strict=True
        ):
            if 0 <= x <= 100 and 0 <= y <= 100:
                value = {"x": x, "y": y, "width": _POINT}
                yield Part(name, round(score, 5), value, index)


_PARTS: dict[str, Callable[[TaskResult, Vocabulary, tuple[int, int]], Iterable[Part]]] = {
    "RectangleLabels": _rectangles,
    "PolygonLabels": _polygons,
    "BrushLabels": _brushes,
    "KeyPointLabels": _keypoints,
}


def _bitmaps(
    found: TaskResult, words: Vocabulary
) -> Iterator[tuple[str, float | None, Bitmap, int]]:
    """Yield the mask of each object, or of each class of a map, which has no owner."""
    if isinstance(found, ClassMap):
        ids = found.pixels()
        for class_id in np.unique(ids).tolist():
            if class_id != NOTHING:
                pixels = (ids == class_id).view(np.uint8)
                yield class_name(words.labels, class_id), None, Bitmap(0, 0, pixels), _NOBODY
        return
    assert isinstance(found, Detections)
    if found.masks is None:
        return  # a capture without an object does not have them
    for index, bitmap in enumerate(found.masks.bitmaps()):
        yield _name(found, words, index), _score(found, index), bitmap, index


def _name(found: Detections, words: Vocabulary, index: int) -> str:
    return class_name(words.labels, int(found.class_ids[index]))


def _score(found: Detections, index: int) -> float:
    return round(float(found.scores[index]), 5)


def _percent(places: NDArray[np.floating[Any]], size: tuple[int, int]) -> list[list[float]]:
    """Return places or sides [n, 2], x y in pixels, as per cents of width and height."""
    rows: list[list[float]] = (100.0 * places.astype(np.float64) / size).round(5).tolist()
    return rows
