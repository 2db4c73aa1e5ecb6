"""Converts the results of an image to the formats of other tools."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import MaskFile, Outlines, RunLengths
from fovea_client.answers import Detection, FiftyOneKind, ImageResult


def coco(
    result: ImageResult, image_id: int, categories: Mapping[str, int] | None
) -> list[dict[str, Any]]:
    """Return one row of COCO's results format for each detection.

    Raises:
        ValueError: `categories` lacks a class.
    """
    if categories is None:
        return [_coco_row(found, image_id, found.class_id) for found in result.detections]
    if missing := {found.class_name for found in result.detections} - categories.keys():
        raise ValueError(
            f"no category has the name {', '.join(sorted(missing))}: add these names to "
            "categories, or request only the other classes with the option `classes`"
        )
    return [_coco_row(each, image_id, categories[each.class_name]) for each in result.detections]


# Number of decimals of pixel coordinates and of scores. The server rounds in the same way.
_PIXEL, _SCORE = 2, 5


def _coco_row(found: Detection, image_id: int, category_id: int) -> dict[str, Any]:
    box = found.box
    row: dict[str, Any] = {
        "image_id": image_id,
        "category_id": category_id,
        "bbox": _pixels((box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1)),
        "score": round(found.score, _SCORE),
    }
    if isinstance(found.mask, RunLengths):
        row["segmentation"] = {"size": list(found.mask.size), "counts": found.mask.counts}
    elif isinstance(found.mask, Outlines):
        row["segmentation"] = [_pixels(outline) for outline in found.mask.polygons]
    if found.keypoints:
        points = ((*_pixels((p.x, p.y)), round(p.score, _SCORE)) for p in found.keypoints)
        row["keypoints"] = [value for point in points for value in point]
    return row | _stage_results(found)


def _stage_results(found: Detection) -> dict[str, Any]:
    """Return the results of a pipeline's stages for one object.

    The keys are fields of `Detection`, and "text_score" for the score of the text.
    """
    more: dict[str, Any] = {}
    if found.attributes:
        more["attributes"] = {
            one.name: [each.class_name for each in one.likely] for one in found.attributes
        }
    if found.classes:
        more["classes"] = {each.class_name: each.score for each in found.classes}
    if found.text is not None:
        more |= {"text": found.text.text, "text_score": found.text.score}
    if found.embedding is not None:
        more["embedding"] = found.embedding.vector.tolist()
    if found.error is not None:
        more["error"] = found.error.message
    return more


def _pixels(places: Iterable[float]) -> list[float]:
    return [round(place, _PIXEL) for place in places]


def supervision(result: ImageResult) -> Any:
    """Return the detections as `supervision.Detections`."""
    data = {"class_name": np.array([each.class_name for each in result.detections])}
    corners = [[(p.x, p.y) for p in each.corners] for each in result.detections]
    if corners and corners[0]:
        data["xyxyxyxy"] = np.array(corners, np.float32)
    rows = [_stage_results(each) for each in result.detections]
    for name in dict.fromkeys(name for row in rows for name in row):
        column = np.empty(len(rows), object)
        column[:] = [row.get(name) for row in rows]
        data[name] = column
    return import_package("supervision", "supervision").Detections(
        xyxy=result.boxes,
        confidence=result.scores,
        class_id=result.class_ids.astype(int),
        mask=result.masks,
        data=data,
    )


def fiftyone(result: ImageResult, kind: FiftyOneKind) -> Any:
    """Return a FiftyOne label. Its coordinates are fractions of the image's width and height."""
    fo = import_package("fiftyone", "fiftyone")
    if result.classes:
        classes = [
            fo.Classification(label=each.class_name, confidence=each.score)
            for each in result.classes
        ]
        return fo.Classifications(classifications=classes)
    if result.semantic is not None:
        return fo.Segmentation(mask=result.semantic.class_ids)
    if result.saliency is not None:
        return fo.Heatmap(map=result.saliency.alpha)
    if (depth := result.depth) is not None:
        return fo.Heatmap(map=depth.values, range=[depth.min, depth.max])
    size = (result.width, result.height)
    match kind:
        case "boxes":
            found = [_detection(fo, each, size) for each in result.detections]
            return fo.Detections(detections=found)
        case "keypoints":
            points = [_keypoints(fo, each, size) for each in result.detections]
            return fo.Keypoints(keypoints=points)
        case "rotated":
            outlines = [_outline(fo, each, size) for each in result.detections]
            return fo.Polylines(polylines=outlines)
    raise ValueError(f"kind must be 'boxes', 'keypoints' or 'rotated', not {kind!r}")


def _detection(fo: Any, found: Detection, size: tuple[int, int]) -> Any:
    (width, height), box = size, found.box
    return fo.Detection(
        label=found.class_name,
        confidence=found.score,
        bounding_box=[
            box.x1 / width,
            box.y1 / height,
            (box.x2 - box.x1) / width,
            (box.y2 - box.y1) / height,
        ],
        mask=_crop_mask(found),
    )


def _crop_mask(found: Detection) -> NDArray[np.bool_] | None:
    """Return the mask inside the box. Pixels that the box covers only partly are included."""
    if not isinstance(found.mask, RunLengths | MaskFile):
        return None
    box = found.box
    rows = slice(max(0, math.floor(box.y1)), math.ceil(box.y2))
    columns = slice(max(0, math.floor(box.x1)), math.ceil(box.x2))
    return found.mask.pixels[rows, columns]


def _keypoints(fo: Any, found: Detection, size: tuple[int, int]) -> Any:
    return fo.Keypoint(
        label=found.class_name,
        points=[(p.x / size[0], p.y / size[1]) for p in found.keypoints],
        confidence=[p.score for p in found.keypoints],
    )


def _outline(fo: Any, found: Detection, size: tuple[int, int]) -> Any:
    return fo.Polyline(
        label=found.class_name,
        confidence=found.score,
        points=[[(p.x / size[0], p.y / size[1]) for p in found.corners]],
        closed=True,
    )


def import_package(module: str, package: str) -> Any:
    """Import a module.

    Raises:
        ImportError: the module is missing. The message names the package to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        message = f"{package} is not installed: pip install {package}"
        raise ImportError(message, name=error.name) from error
