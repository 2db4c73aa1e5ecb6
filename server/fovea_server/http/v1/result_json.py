"""Writes what a model found on one image as JSON; one function for each task."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.map_encoding import class_png, depth_png, mask_png
from fovea_engines.detect.maps import NOTHING, ClassMap, DepthMap, SoftMask
from fovea_engines.detect.mask_encoding import (
    Outlines,
    RunLengths,
    encoded_masks,
    polygons,
    run_lengths,
)
from fovea_engines.detect.masks import Bitmap
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import corners
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary

# A hundredth of a pixel and of a per mille, and of a radian as little: finer than any model, and
# short on the wire.
_PIXEL, _SCORE, _ANGLE = 1e2, 1e5, 1e5


@singledispatch
def result_json(found: TaskResult, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the fields that a task adds to an `ImageAnswer`."""
    raise NotImplementedError(type(found).__name__)


@result_json.register
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


@result_json.register
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
    numbers += 0.0  # which makes 0 of -0
    rows: list[list[float]] = numbers.tolist()
    return rows


@result_json.register
def _class_map(found: ClassMap, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the classes of an image, the largest first, with their masks or one map."""
    ids = found.pixels()
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    largest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    classes: list[dict[str, Any]] = [
        {
            "class_id": class_id,
            "class_name": class_name(words.labels, class_id),
            "pixels": int(counts[class_id]),
            "share": round(int(counts[class_id]) / ids.size, 5),
        }
        for class_id in largest_first.tolist()
    ]
    if options.mask in ("rle", "polygon"):
        for each in classes:
            each["mask"] = _mask(ids, each["class_id"], polygon=options.mask == "polygon")
    answer: dict[str, Any] = {"classes": classes}
    if options.mask == "png":
        answer["png"] = _base64(class_png(ids))
    return {"semantic": answer}


@result_json.register
def _foreground(found: SoftMask, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the share of the foreground, and its mask."""
    values = found.pixels()
    answer: dict[str, Any] = {"share": round(float(values.mean()), 5)}
    if options.mask != "none":
        answer["png"] = _base64(mask_png(values))
    return {"saliency": answer}


@result_json.register
def _depth(found: DepthMap, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the range of the depths, and their map."""
    values = found.pixels()
    answer: dict[str, Any] = {
        "min": float(values.min()),
        "max": float(values.max()),
        "unit": "m" if found.metres else None,
    }
    if options.mask != "none":
        file = depth_png(values)
        answer |= {"png": _base64(file.png), "scale": file.scale, "offset": file.offset}
    return {"depth": answer}


def _mask(ids: NDArray[np.uint16], class_id: int, *, polygon: bool) -> RunLengths | Outlines:
    pixels = (ids == class_id).view(np.uint8)
    left, top, width, height = cv2.boundingRect(pixels)
    bitmap = Bitmap(left, top, pixels[top : top + height, left : left + width])
    height, width = ids.shape
    if polygon:
        return {"size": [height, width], "polygons": polygons(bitmap)}
    return run_lengths(bitmap, (height, width))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
