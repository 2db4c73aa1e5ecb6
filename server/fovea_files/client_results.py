"""Turns a result of the client back into one of a head, which can be drawn."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_client import Detection, ImageResult, MaskFile, Outlines, RunLengths
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.findings import Finding
from fovea_engines.detect.map_encoding import NOTHING
from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.detect.masks import Bitmap, Masks
from fovea_engines.detect.skeleton import PERSON, Skeleton
from fovea_engines.detect.task_result import TaskResult

SEEN = 0.5
"""Keypoints of a lower score are mostly hidden, and guessed."""

Mask = RunLengths | MaskFile | Outlines


def task_result(result: ImageResult) -> TaskResult | None:
    """Return what is drawn of any task but tensors, in pixels of the upright image.

    It is None where a picture lists `ImageResult.lines` alone.

    ValueError: the answer leaves the map out, as with mask=none.
    """
    size = result.height, result.width
    if result.semantic is not None:
        ids = np.full(size, NOTHING, np.uint16)
        if result.semantic.png is not None:
            levels = result.semantic.class_ids
            ids[:] = np.where(levels == np.iinfo(levels.dtype).max, NOTHING, levels)
        else:
            # The largest is first: outlines cover what lies in their holes, until it is drawn.
            for area in result.semantic.classes:
                if area.mask is None:
                    raise ValueError("the answer has no masks of the classes")
                ids[pixels(area.mask, size)] = area.class_id
        return ClassMap(ids)
    if result.saliency is not None:
        return SoftMask(np.divide(result.saliency.alpha, 255, dtype=np.float32))
    if result.depth is not None:
        return DepthMap(result.depth.values, metres=result.depth.unit is not None)
    if result.classes:
        ids_, scores = zip(*((one.class_id, one.score) for one in result.classes), strict=True)
        return Classes(np.array(ids_, np.int32), np.array(scores, np.float32))
    return None if result.values else _objects(result)


def _objects(result: ImageResult) -> Detections:
    found, size = result.detections, (result.height, result.width)
    masks = None
    if any(each.mask is not None for each in found):
        masks = _masks([bitmap(each, size) for each in found], size)
    rotated = [
        (one.rotated.cx, one.rotated.cy, one.rotated.w, one.rotated.h, one.rotated.angle)
        for one in found
        if one.rotated is not None
    ]
    ids = [each.track_id or 0 for each in found]
    return Detections(
        result.boxes,
        result.scores,
        result.class_ids,
        masks,
        result.keypoints,
        np.array(rotated, np.float32) if rotated else None,
        np.array(ids, np.int32) if any(ids) else None,
        findings=tuple(
            tuple(Finding("", "", caption=note) for note in each.notes) for each in found
        ),
    )


def _masks(bitmaps: list[Bitmap], size: tuple[int, int]) -> Masks:
    places = np.array(
        [(left, top, left + part.shape[1], top + part.shape[0]) for left, top, part in bitmaps],
        np.float64,
    )
    windows = tuple(part.astype(np.float32) - 0.5 for _, _, part in bitmaps)
    return Masks(windows, places, places, size)


def skeleton_of(result: ImageResult) -> Skeleton | None:
    """Return the skeleton that an answer names, with bones if it is a person's."""
    names = next((tuple(p.name for p in one.keypoints) for one in result.detections), ())
    if not names:
        return None
    return PERSON if names == PERSON.names else Skeleton(names)


def bitmap(found: Detection, size: tuple[int, int]) -> Bitmap:
    """Return the part of an image of (height, width) with an object's mask; empty without one."""
    if found.mask is None:
        return Bitmap(0, 0, np.zeros((0, 0), np.uint8))
    whole = pixels(found.mask, size).view(np.uint8)
    left, top, width, height = cv2.boundingRect(whole)
    return Bitmap(left, top, np.ascontiguousarray(whole[top : top + height, left : left + width]))


def pixels(mask: Mask, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask, bool [height, width]."""
    if isinstance(mask, RunLengths | MaskFile):
        return np.ascontiguousarray(mask.pixels)
    canvas = np.zeros(size, np.uint8)
    # They go through the centres of pixels, which OpenCV counts from.
    outlines = [np.array(each).reshape(-1, 2) - 0.5 for each in mask.polygons]
    cv2.fillPoly(canvas, [outline.round().astype(np.int32) for outline in outlines], 1)
    return canvas.view(np.bool_)
