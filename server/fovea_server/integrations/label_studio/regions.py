"""Converts results to regions of Label Studio. Coordinates are percentages of the image's sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import corners
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.integrations.label_studio.config import Control, spelling
from fovea_server.tensors.messages import ImageResult

Fields = dict[str, Any]
"""Fields of an image or an object, in the form of the JSON of /v1."""

_WIDTHS = np.array([4, 8, 12, 16])
_LONGEST = 1 << 16
_VALUE_BITS = 8
# Number of values per pixel in Label Studio's format: red, green, blue and opacity. All four are
# equal.
_CHANNELS = 4

# Width of a drawn point, as a percentage of the image's width.
_POINT = 0.6
_NOBODY = -1


def fields_of(found: TaskResult, vocabulary: Vocabulary) -> tuple[Fields, dict[int, Fields]]:
    """Return the fields of the image, and the fields of each object by its index."""
    if isinstance(found, ClassMap) or (
        isinstance(found, Detections) and found.stage_results is None
    ):
        return {}, {}
    if not isinstance(found, Detections):
        return found.to_json(vocabulary, PredictOptions()), {}
    # Leave out the masks, because they become separate regions.
    objects = replace(found, masks=None).to_json(vocabulary, PredictOptions())["detections"]
    return {}, dict(enumerate(objects))


def control_value(control: Control, fields: Fields) -> tuple[dict[str, Any], float] | None:
    """Return the value and the score for a control, or None if no result fits it."""
    if control.kind == "TextArea":
        text = fields.get("reading", fields.get("text"))
        if not text or not text["text"] or text["score"] < control.threshold:
            return None
        return {"text": [text["text"]]}, text["score"]
    scores: dict[str, float] = {}
    for one in _classes(control, fields):
        label = control.labels.get(spelling(one["class_name"]))
        if label is not None and one["score"] >= control.threshold:
            scores.setdefault(label, one["score"])
    if not scores:
        return None
    chosen = list(scores) if control.several else list(scores)[:1]
    return {"choices": chosen}, scores[chosen[0]]


def _classes(control: Control, fields: Fields) -> list[dict[str, Any]]:
    """Return the classes for a control, the best class first.

    If an attribute has the control's name, return its classes, otherwise all classes.
    """
    named = fields.get("attributes", [])
    own = [each for each in named if spelling(each["name"]) == spelling(control.name)]
    found = [one for each in own or named for one in each["classes"]]
    if not own:
        found += fields.get("classes", [])
    return sorted(found, key=lambda one: -one["score"])


def pack_mask(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack a mask [height, width] of 0 and 1 into the bytes of Label Studio's RLE format."""
    pixels = mask.ravel()
    edges = np.flatnonzero(np.diff(pixels)) + 1
    starts = np.concatenate([[0], edges])
    lengths = np.diff(np.concatenate([starts, [pixels.size]])) * _CHANNELS
    header = f"{pixels.size * _CHANNELS:032b}{_VALUE_BITS - 1:05b}"
    header += "".join(f"{width - 1:04b}" for width in _WIDTHS)
    bits = np.frombuffer(header.encode(), np.uint8) - ord("0")
    return np.packbits(np.concatenate([bits, _runs(lengths, pixels[starts])]))


def _runs(lengths: NDArray[np.int64], values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits of runs of equal values.

    Very long runs are split, because the lengths in the format are limited.
    """
    counts = -(-lengths // _LONGEST)
    parts = np.full(counts.sum(), _LONGEST)
    parts[counts.cumsum() - 1] = lengths - (counts - 1) * _LONGEST
    widths = np.searchsorted(1 << _WIDTHS, parts)
    sizes = 3 + _WIDTHS[widths] + _VALUE_BITS
    codes = (4 | widths) << _WIDTHS[widths] | (parts - 1)
    codes = codes << _VALUE_BITS | np.repeat(values, counts) * 255
    # Each row of 32 bits (big-endian) contains leading zeros and then the bits of a run.
    rows = np.unpackbits(codes.astype(">u4").view(np.uint8).reshape(-1, 4), axis=1)
    bits: NDArray[np.uint8] = rows[np.arange(32) >= 32 - sizes[:, None]]
    return bits


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a result that becomes one region.

    Attributes:
        name: name of the part's class or keypoint.
        score: score; None if the model has no scores.
        value: value of the region, without the label.
        owner: index of the object that the part belongs to; `_NOBODY` if there is none.
    """

    name: str
    score: float | None
    value: dict[str, Any]
    owner: int


def regions(
    result: ImageResult, vocabulary: Vocabulary, controls: Sequence[Control]
) -> list[dict[str, Any]]:
    """Return the regions and values for the controls. Regions without a label are left out."""
    drawn: list[dict[str, Any]] = []
    boxes: dict[int, str] = {}
    found = result.found
    assert found is not None, "the task of the model is one that the controls have"
    whole, objects = fields_of(found, vocabulary)
    inside = [control for control in controls if control.per_region]
    # Process rectangles first, because keypoints refer to the rectangle of the same object.
    for control in sorted(controls, key=lambda each: each.kind != "RectangleLabels"):
        if control.kind not in _PARTS:
            if not control.per_region and (answer := control_value(control, whole)) is not None:
                drawn.append(_region(control, result, *answer))
            continue
        for part in _PARTS[control.kind](found, vocabulary, (result.width, result.height)):
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
    """Yield the values of per-region controls under the region's ID.

    If the object has an embedding, add it to the region.
    """
    for control in controls:
        if (answer := control_value(control, fields)) is not None:
            value, score = answer
            kind = {"from_name": control.name, "type": control.value_key, "score": score}
            # Label Studio expects the position of a region in each result that belongs to the
            # region.
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


def _rectangles(found: TaskResult, vocabulary: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    assert isinstance(found, Detections)
    if found.rotated is None:
        firsts, sides = found.boxes[:, :2], found.boxes[:, 2:] - found.boxes[:, :2]
        angles = np.zeros(len(found))
    else:
        # Use the first corner, because it stays in place when Label Studio rotates the rectangle.
        firsts, sides = corners(found.rotated)[:, 0], found.rotated[:, 2:4]
        angles = np.degrees(found.rotated[:, 4]) % 360
    rows = zip(_percent(firsts, size), _percent(sides, size), angles.tolist(), strict=True)
    for index, ((x, y), (width, height), angle) in enumerate(rows):
        value = {"x": x, "y": y, "width": width, "height": height, "rotation": round(angle, 4)}
        yield Part(_name(found, vocabulary, index), _score(found, index), value, index)


def _polygons(found: TaskResult, vocabulary: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    if isinstance(found, Detections) and found.rotated is not None:
        for index, outline in enumerate(corners(found.rotated)):
            value = {"points": _percent(outline, size), "closed": True}
            yield Part(_name(found, vocabulary, index), _score(found, index), value, index)
        return
    for name, score, bitmap, owner in _bitmaps(found, vocabulary):
        for points in polygons(bitmap):
            outline = np.array(points).reshape(-1, 2)
            yield Part(name, score, {"points": _percent(outline, size), "closed": True}, owner)


def _brushes(found: TaskResult, vocabulary: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    for name, score, bitmap, owner in _bitmaps(found, vocabulary):
        mask = np.zeros((size[1], size[0]), np.uint8)
        rows, columns = bitmap.pixels.shape
        mask[bitmap.top : bitmap.top + rows, bitmap.left : bitmap.left + columns] = bitmap.pixels
        if mask.any():
            yield Part(name, score, {"format": "rle", "rle": pack_mask(mask)}, owner)


def _keypoints(found: TaskResult, vocabulary: Vocabulary, size: tuple[int, int]) -> Iterator[Part]:
    assert isinstance(found, Detections)
    if found.keypoints is None:
        return  # captured results without objects have no keypoints
    assert vocabulary.skeleton is not None
    for index, points in enumerate(found.keypoints):
        places = _percent(points[:, :2], size)
        for name, (x, y), score in zip(
            vocabulary.skeleton.names, places, points[:, 2].tolist(), strict=True
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
    found: TaskResult, vocabulary: Vocabulary
) -> Iterator[tuple[str, float | None, Bitmap, int]]:
    """Yield (name, score, mask, owner) for each object, or for each class of a semantic map."""
    if isinstance(found, ClassMap):
        ids = found.pixels()
        for class_id in np.unique(ids).tolist():
            if class_id != NOTHING:
                pixels = (ids == class_id).view(np.uint8)
                yield class_name(vocabulary.labels, class_id), None, Bitmap(0, 0, pixels), _NOBODY
        return
    assert isinstance(found, Detections)
    if found.masks is None:
        return  # captured results without objects have no masks
    for index, bitmap in enumerate(found.masks.bitmaps()):
        yield _name(found, vocabulary, index), _score(found, index), bitmap, index


def _name(found: Detections, vocabulary: Vocabulary, index: int) -> str:
    return class_name(vocabulary.labels, int(found.class_ids[index]))


def _score(found: Detections, index: int) -> float:
    return round(float(found.scores[index]), 5)


def _percent(places: NDArray[np.floating[Any]], size: tuple[int, int]) -> list[list[float]]:
    """Convert positions or sizes [n, 2], which are (x, y) in pixels, to percentages.

    They are percentages of the image's `size`, which is (width, height).
    """
    rows: list[list[float]] = (100.0 * places.astype(np.float64) / size).round(5).tolist()
    return rows
