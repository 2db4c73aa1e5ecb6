"""Writes the objects on images as JSON and as tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import DTypeLike

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.mask_encoding import encoded_masks
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import corners
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form, Listed

SCORE: Final = 1e5
"""Scores are rounded to a hundredth of a per mille: finer than any model, and short on the wire."""
# A hundredth of a pixel, and of a radian as little as of a score.
_PIXEL, _ANGLE = 1e2, 1e5
_BOX_SCORE = np.array([_PIXEL] * 4 + [SCORE])
_POINT_SCORE = np.array([_PIXEL] * 2 + [SCORE])
_RECTANGLE = np.array([_PIXEL] * 4 + [_ANGLE])
_OUTLINE = np.array([_PIXEL] * 8)

SCORED_CLASSES: Final[Sequence[Listed]] = (
    ("scores", "FP32", (-1, -1)),
    ("class_ids", "INT32", (-1, -1)),
    ("class_names", "BYTES", (-1, -1)),
)
"""The tensors of `scored_classes`."""


def objects_json(found: Detections, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return each object; with its mask, keypoints or rectangle where the task has them."""
    # orjson writes dicts faster than any template of ours is filled in.
    numbers = rounded(np.concatenate([found.boxes, found.scores[:, None]], 1), _BOX_SCORE)
    ids = found.class_ids.tolist()
    names = {class_id: class_name(words.labels, class_id) for class_id in set(ids)}
    objects: list[dict[str, Any]] = [
        {
            "box": {"x1": x1, "y1": y1, "x2": x2, "y2": y2},
            "score": score,
            "class_id": class_id,
            "class_name": names[class_id],
        }
        for (x1, y1, x2, y2, score), class_id in zip(numbers, ids, strict=True)
    ]
    if found.masks is not None:
        for each, mask in zip(objects, encoded_masks(found.masks, options.mask), strict=True):
            each["mask"] = mask
    if found.keypoints is not None and words.skeleton is not None:
        for each, points in zip(objects, found.keypoints, strict=True):
            each["keypoints"] = _keypoints(points, words.skeleton)
    if found.rotated is not None:
        for each, rectangle in zip(objects, _rotated(found.rotated), strict=True):
            each |= rectangle
    if found.track_ids is not None:
        for each, track_id in zip(objects, found.track_ids.tolist(), strict=True):
            each["track_id"] = track_id if track_id > 0 else None
    return {"detections": objects}


def _keypoints(points: Array, skeleton: Skeleton) -> list[dict[str, Any]]:
    rows = rounded(points, _POINT_SCORE)
    return [
        {"name": name, "x": x, "y": y, "score": score}
        for name, (x, y, score) in zip(skeleton.names, rows, strict=True)
    ]


def _rotated(rotated: Array) -> Iterator[dict[str, Any]]:
    rows = rounded(rotated, _RECTANGLE)
    outlines = rounded(corners(rotated).reshape(-1, 8), _OUTLINE)
    for (cx, cy, w, h, angle), (*xy,) in zip(rows, outlines, strict=True):
        yield {
            "rotated": {"cx": cx, "cy": cy, "w": w, "h": h, "angle": angle},
            "corners": [{"x": x, "y": y} for x, y in zip(xy[::2], xy[1::2], strict=True)],
        }


def objects_tensors(
    found: Sequence[Detections], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert objects.

    Returns:
        ``num_detections`` INT32 [n]; ``boxes`` FP32 [n, k, 4], x1 y1 x2 y2 in pixels of the
        upright image; ``scores`` FP32 [n, k]; ``class_ids`` INT32 [n, k]; ``class_names`` BYTES
        [n, k]. k is the largest number of objects on one image; the other rows are zero.
        ``masks`` BYTES [n, k] of a segmenter: JSON, as /v1 has it. ``keypoints`` FP32 [n, k,
        points, 3] of a pose model: x y in pixels, score.
        ``rotated`` FP32 [n, k, 5] of rotated boxes: cx cy w h in pixels, angle in radians.
        ``track_ids`` INT32 [n, k] with track: -1 until the tracker is sure.
    """
    most = max(map(len, found))
    counts = np.array([len(one) for one in found], np.int32)
    tensors = [
        OutputTensor("num_detections", "INT32", counts),
        OutputTensor("boxes", "FP32", _padded([one.boxes for one in found], most, np.float32)),
        *scored_classes(found, most, words),
    ]
    masks = [one.masks for one in found if one.masks is not None]
    if masks:
        encoded = np.full((len(found), most), b"", object)
        for row, of_image in enumerate(masks):
            for column, mask in enumerate(encoded_masks(of_image, options.mask)):
                encoded[row, column] = orjson.dumps(mask)
        tensors.append(OutputTensor("masks", "BYTES", encoded))
    points = [one.keypoints for one in found if one.keypoints is not None]
    if points:
        tensors.append(OutputTensor("keypoints", "FP32", _padded(points, most, np.float32)))
    rotated = [one.rotated for one in found if one.rotated is not None]
    if rotated:
        tensors.append(OutputTensor("rotated", "FP32", _padded(rotated, most, np.float32)))
    tracks = [
        np.where(one.track_ids > 0, one.track_ids, -1) for one in found if one.track_ids is not None
    ]
    if tracks:
        tensors.append(OutputTensor("track_ids", "INT32", _padded(tracks, most, np.int32)))
    return tensors


def rounded(values: Array, per_unit: Array | float) -> list[list[float]]:
    """Return numbers [n, columns], rounded as `np.round` computes it, in one step for all."""
    numbers = values.astype(np.float64)
    numbers *= per_unit
    np.rint(numbers, numbers)
    numbers /= per_unit
    numbers += 0.0  # which makes 0 of -0
    rows: list[list[float]] = numbers.tolist()
    return rows


def scored_classes(
    found: Sequence[Detections | Classes], most: int, words: Vocabulary
) -> list[OutputTensor]:
    """Return the scores, ids and names of n images, each [n, most]."""
    names = np.full((len(found), most), b"", object)
    for row, one in enumerate(found):
        for column, class_id in enumerate(one.class_ids.tolist()):
            names[row, column] = class_name(words.labels, class_id).encode()
    ids = _padded([one.class_ids for one in found], most, np.int32)
    return [
        OutputTensor("scores", "FP32", _padded([one.scores for one in found], most, np.float32)),
        OutputTensor("class_ids", "INT32", ids),
        OutputTensor("class_names", "BYTES", names),
    ]


def _padded(arrays: Sequence[Array], length: int, dtype: DTypeLike) -> Array:
    whole = np.zeros((len(arrays), length, *arrays[0].shape[1:]), dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole


def _outputs(head: Head) -> list[Listed]:
    tensors: list[Listed] = [
        ("num_detections", "INT32", (-1,)),
        ("boxes", "FP32", (-1, -1, 4)),
        *SCORED_CLASSES,
    ]
    if head.task == "segment":
        tensors.append(("masks", "BYTES", (-1, -1)))
    if head.skeleton is not None:
        tensors.append(("keypoints", "FP32", (-1, -1, len(head.skeleton.names), 3)))
    if head.task in ("obb", "text"):
        tensors.append(("rotated", "FP32", (-1, -1, 5)))
    return tensors


OBJECTS = Form(
    Detections,
    ("detect", "segment", "pose", "obb", "text"),
    objects_json,
    objects_tensors,
    _outputs,
)
