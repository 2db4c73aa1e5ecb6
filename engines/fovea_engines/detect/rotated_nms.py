"""Greedy suppression of rotated rectangles, exact, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.nms import ranked, settle, take
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import Floats, Rows, axes, bounds, probiou, regular

Overlap = Callable[[Floats, Floats], Floats]
"""`probiou` or `iou`."""


def rotated_detections(
    rotated: Rows,
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    overlap: Overlap = probiou,
) -> Detections:
    """Filter, order and suppress one image's candidates, as `nms.detections` does with boxes.

    They are rows [n, 5] of cx cy w h angle, in pixels and radians.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        boxes = bounds(rotated)
    order = ranked(boxes, scores, class_ids, options)
    groups = np.zeros(len(order)) if options.agnostic else class_ids[order]
    kept = order[greedy(rotated[order], groups, options.iou, options.max_det, overlap)]
    return replace(take(boxes, scores, class_ids, kept), rotated=regular(rotated[kept]))


def greedy(
    rotated: Rows,
    groups: NDArray[np.number],
    iou: float,
    limit: int,
    overlap: Overlap = probiou,
) -> NDArray[np.intp]:
    """Return the indices, ascending, of at most `limit` rectangles that survive suppression.

    A rectangle is dropped when its overlap with a surviving better one exceeds `iou`. They are rows
    [n, 5], best first; those of different `groups` [n] never suppress each other.
    """
    table, farthest = axes(rotated), _farthest(iou)
    diagonals = np.square(table[2:]).sum(axis=0)

    def over(better: NDArray[np.intp], worse: NDArray[np.intp]) -> NDArray[np.bool_]:
        x, y = table[:2, better, None] - table[:2, None, worse]
        reach = farthest * (diagonals[better, None] + diagonals[worse])
        near: NDArray[np.bool_] = (x**2 + y**2 <= reach) & (groups[better, None] == groups[worse])
        pairs = np.flatnonzero(near)
        one, other = np.divmod(pairs, len(worse))
        near.ravel()[pairs] = overlap(table[:, better[one]], table[:, worse[other]]) > iou
        return near

    return settle(len(rotated), limit, over)


def _farthest(iou: float) -> float:
    """Return the squared distance at which no pair overlaps by more, by either measure.

    It is in sums of the squared half diagonals. Two rectangles that meet are at most half of both
    diagonals apart. The Bhattacharyya distance of two Gaussians is at least 3/4 of this quotient.
    """
    coefficient = iou * (2 - iou)
    return max(2.0, -math.log(coefficient) * 4 / 3) if coefficient else math.inf
