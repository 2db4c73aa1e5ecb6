"""Measures the overlap of two models' objects. The task determines the kind of overlap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fovea_engines.repository.figures import Overlap
from fovea_engines.results import rotated
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Bitmap, Masks
from fovea_engines.results.rotated import axes, bounds

Floats = NDArray[np.float64]

# Sigmas of COCO's keypoint evaluation, for the 17 points of a person.
_PERSON_SIGMAS = np.array(
    [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]
) / 1000  # fmt: skip
_OTHER_SIGMA = 0.05
# Number of pixels that is added to the sides of boxes. Without it, a box that the image's border
# cuts to a line would have no area.
_LINE = 1e-6


def sigmas(count: int) -> Floats:
    """Return COCO's sigma of each keypoint.

    The sigma is the standard deviation of positions that people label, divided by the square root
    of the object's area.
    """
    return _PERSON_SIGMAS if count == len(_PERSON_SIGMAS) else np.full(count, _OTHER_SIGMA)


def overlap_of(want: Detections, have: Detections) -> Overlap:
    """Return the name of the kind of overlap that `overlap` computes for these objects."""
    if want.masks is not None and have.masks is not None:
        return "mask IoU"
    if want.keypoints is not None and have.keypoints is not None:
        return "OKS"
    return "IoU" if want.rotated is None or have.rotated is None else "rotated IoU"


def overlap(want: Detections, have: Detections) -> Floats:
    """Return the overlap [n, m], 0 to 1, of two models' objects.

    The kind of overlap depends on the objects of both models: the IoU of masks, the OKS of
    keypoints, the IoU of rotated boxes, or the IoU of boxes. The first kind that is possible is
    used.
    """
    boxes = iou(want.boxes, have.boxes)
    if want.masks is not None and have.masks is not None:
        return _mask_iou(want.masks, have.masks, boxes)
    if want.keypoints is not None and have.keypoints is not None:
        return _similarity(want, have, boxes)
    if want.rotated is not None and have.rotated is not None:
        return rotated_iou(want.rotated, have.rotated)
    return boxes


def rotated_iou(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    """Return the intersection over union [n, m] of rectangles [n, 5] and [m, 5]."""
    found = iou(bounds(one), bounds(other))
    near = np.nonzero(found)
    found[near] = rotated.iou(axes(one)[:, near[0]], axes(other)[:, near[1]])
    return found


def iou(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    """Return the intersection over union [n, m] of boxes [n, 4] and [m, 4], x1 y1 x2 y2."""
    a, b = one.astype(np.float64)[:, None], other.astype(np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + _LINE
    shared = np.clip(sides, 0, None).prod(axis=-1)
    areas = [np.clip(box[..., 2:] - box[..., :2] + _LINE, 0, None).prod(-1) for box in (a, b)]
    union = areas[0] + areas[1] - shared
    overlap: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def _mask_iou(want: Masks, have: Masks, boxes: Floats) -> Floats:
    """Return the IoU of masks, or 0 if their boxes do not overlap.

    For two empty masks, the IoU of their boxes is used.
    """
    ours, theirs = list(want.bitmaps()), list(have.bitmaps())
    areas = [[np.count_nonzero(one.pixels) for one in each] for each in (ours, theirs)]
    found = boxes.copy()
    for i, j in zip(*np.nonzero(boxes), strict=True):
        shared = _count_shared(ours[i], theirs[j])
        union = areas[0][i] + areas[1][j] - shared
        if union:
            found[i, j] = shared / union
    return found


def _count_shared(one: Bitmap, other: Bitmap) -> int:
    """Return the number of pixels that belong to both masks."""
    left, top = max(one.left, other.left), max(one.top, other.top)
    parts = [each.pixels[top - each.top :, left - each.left :] for each in (one, other)]
    height, width = np.min([part.shape for part in parts], axis=0)
    return int(np.count_nonzero(parts[0][:height, :width] & parts[1][:height, :width]))


def _similarity(want: Detections, have: Detections, boxes: Floats) -> Floats:
    """Return COCO's object keypoint similarity [n, m].

    A keypoint is weighted by the larger of its two scores. If both models found no keypoint of an
    object, the overlap of its boxes is used.
    """
    assert want.keypoints is not None, "the caller has checked it"
    assert have.keypoints is not None, "the caller has checked it"
    ours, theirs = want.keypoints.astype(np.float64)[:, None], have.keypoints[None]
    widths = 2 * sigmas(ours.shape[2])
    area = np.clip(want.boxes[:, 2:] - want.boxes[:, :2], 0, None).prod(axis=1)
    scale = 2 * np.maximum(area, np.finfo(np.float32).eps)[:, None, None] * widths**2
    alike = np.exp(-np.square(ours[..., :2] - theirs[..., :2]).sum(axis=-1) / scale)
    weights = np.maximum(ours[..., 2], theirs[..., 2])
    total = weights.sum(axis=-1)
    found: Floats = np.divide((alike * weights).sum(axis=-1), total, out=boxes, where=total > 0)
    return found
