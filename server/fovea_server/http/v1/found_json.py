"""Writes what a model found on one image as JSON; one function for each task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.finding import Finding
from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.detect.mask_encoding import encoded_masks
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import corners
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.session import Array
from fovea_server.http.v1.maps_json import classes_json, depth_json, foreground_json
from fovea_server.tensors.image_messages import Vocabulary

# A hundredth of a pixel and of a per mille, and of a radian as little: finer than any model, and
# short on the wire.
_PIXEL, _SCORE, _ANGLE = 1e2, 1e5, 1e5


@singledispatch
def found_json(found: Finding, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the fields that a task adds to an `ImageAnswer`."""
    raise NotImplementedError(type(found).__name__)


found_json.register(ClassMap, classes_json)
found_json.register(SoftMask, foreground_json)
found_json.register(DepthMap, depth_json)


@found_json.register
def _objects(found: Detections, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    # orjson writes dicts faster than any template of ours is filled in.
    numbers = _rounded(
        np.column_stack([found.boxes, found.scores]), [_PIXEL, _PIXEL, _PIXEL, _PIXEL, _SCORE]
    )
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
    return {"detections": objects}


@found_json.register
def _classes(found: Classes, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    scores = _rounded(found.scores[:, None], [_SCORE])
    return {
        "classes": [
            {"class_id": each, "class_name": class_name(words.labels, each), "score": score}
            for each, (score,) in zip(found.class_ids.tolist(), scores, strict=True)
        ]
    }


def _keypoints(points: Array, skeleton: Skeleton) -> list[dict[str, Any]]:
    rows = _rounded(points, [_PIXEL, _PIXEL, _SCORE])
    return [
        {"name": name, "x": x, "y": y, "score": score}
        for name, (x, y, score) in zip(skeleton.names, rows, strict=True)
    ]


def _rotated(rotated: Array) -> Iterator[dict[str, Any]]:
    rows = _rounded(rotated, [_PIXEL] * 4 + [_ANGLE])
    outlines = _rounded(corners(rotated).reshape(-1, 8), [_PIXEL] * 8)
    for (cx, cy, w, h, angle), (*xy,) in zip(rows, outlines, strict=True):
        yield {
            "rotated": {"cx": cx, "cy": cy, "w": w, "h": h, "angle": angle},
            "corners": [{"x": x, "y": y} for x, y in zip(xy[::2], xy[1::2], strict=True)],
        }


def _rounded(values: Array, per_unit: list[float]) -> list[list[float]]:
    """Return numbers [n, columns], rounded as `np.round` computes it, in one step for all."""
    numbers = values.astype(np.float64)
    numbers *= per_unit
    np.rint(numbers, numbers)
    numbers /= per_unit
    rows: list[list[float]] = numbers.tolist()
    return rows
