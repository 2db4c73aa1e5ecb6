"""Exact greedy non-maximum suppression of boxes and rotated rectangles, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import Floats, Rows, axes, bounds, probiou, regular

MAX_CANDIDATES = 30_000
"""Largest number of boxes that enter suppression, best first: evaluation at conf .001 needs it."""

BLOCK = 192
"""Number of boxes that are compared at once.

Smaller blocks pay numpy's overhead more often (128 takes a tenth more time). Larger blocks compare
pairs that suppression would have skipped.
"""

WORSE = np.triu(np.ones((BLOCK, BLOCK), dtype=np.bool_), k=1)
"""Upper triangular mask [better, worse]: boxes come best first, so later ones are worse."""

FARTHEST = 1e6
"""Largest valid coordinate, pixels. Larger ones show broken outputs, and areas overflow float32."""

Overlap = Callable[[Floats, Floats], Floats]
"""A function such as `probiou` or `iou`, which measures the overlap of pairs of rectangles."""


def detections(
    boxes: NDArray[np.floating],
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    *,
    suppress: bool = True,
) -> Detections:
    """Filter, sort and suppress the candidates of one image.

    Args:
        boxes: float [n, 4], corners x1 y1 x2 y2 in pixels. Boxes are dropped if they are not
            finite, lie beyond `FARTHEST`, or have no area.
        scores: float [n]. Scores that are not finite are dropped; scores over 1 become 1.
        class_ids: int [n].
        options: options of the request.
        suppress: False for a head whose boxes have no duplicates.

    Returns:
        At most `options.max_det` detections in new arrays, by descending score. Detections with
        equal scores keep their order.
    """
    kept = choose(boxes, scores, class_ids, options, suppress=suppress)
    return take(boxes, scores, class_ids, kept)


def take(
    boxes: NDArray[np.floating],
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    kept: NDArray[np.intp],
) -> Detections:
    """Return the candidates with these indices as detections, in new arrays."""
    return Detections(
        boxes=boxes.take(kept, axis=0).astype(np.float32, copy=False),
        scores=np.minimum(scores.take(kept), 1).astype(np.float32, copy=False),
        class_ids=class_ids.take(kept).astype(np.int32, copy=False),
    )


def choose(
    boxes: NDArray[np.floating],
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    *,
    suppress: bool = True,
) -> NDArray[np.intp]:
    """Return the indices of the candidates that `detections` keeps, best first."""
    order = rank(boxes, scores, class_ids, options)
    if not suppress or len(order) < 2:
        return order[: options.max_det]
    groups = None if options.agnostic else class_ids[order]
    ordered = boxes[order].astype(np.float32, copy=False)
    return order[greedy(ordered, groups, options.iou, options.max_det)]


def rank(
    boxes: NDArray[np.floating],
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
) -> NDArray[np.intp]:
    """Return the indices of the candidates that may enter suppression, best first."""
    x1, y1, x2, y2 = boxes.T
    # Every comparison with NaN is False. Together the comparisons also exclude infinity.
    sound = (x1 < x2) & (y1 < y2) & (scores >= options.conf) & (scores < np.inf)
    if not np.maximum.reduce(np.abs(boxes), axis=None, initial=0) < FARTHEST:
        sound &= (x1 > -FARTHEST) & (y1 > -FARTHEST) & (x2 < FARTHEST) & (y2 < FARTHEST)
    if options.classes is not None:
        sound &= np.isin(class_ids, options.classes)
    order: NDArray[np.intp] = sound.nonzero()[0]
    if len(order) > 1:
        order = order[(-scores[order]).argsort(kind="stable")[:MAX_CANDIDATES]]
    return order


def greedy(
    boxes: NDArray[np.float32],
    groups: NDArray[np.integer] | None,
    iou: float,
    limit: int,
) -> NDArray[np.intp]:
    """Return the indices, ascending, of at most `limit` boxes that survive greedy suppression.

    A box is dropped if its IoU with a better surviving box exceeds `iou`.

    Args:
        boxes: float32 [n, 4], corners x1 y1 x2 y2, best first.
        groups: int [n]; boxes of different groups never suppress each other. None is one group.
        iou: threshold, 0 to 1.
        limit: largest number of boxes to return.
    """
    table = add_groups(boxes, groups)
    return suppress_greedily(
        len(boxes),
        limit,
        lambda better, worse: find_overlaps(table[:, better], table[:, worse], iou),
    )


def add_groups(
    boxes: NDArray[np.float32], groups: NDArray[np.integer] | None
) -> NDArray[np.float32]:
    """Return the table [5, n] of boxes and groups for `find_overlaps`; None is one group."""
    if groups is None:
        groups = np.zeros(len(boxes), dtype=np.int32)
    return np.concatenate([boxes.T, groups[None].astype(np.float32)])


def suppress_greedily(
    count: int,
    limit: int,
    overlaps: Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.bool_]],
) -> NDArray[np.intp]:
    """Return the indices, ascending, of at most `limit` of `count` candidates that survive.

    Each block of candidates is compared with all earlier survivors, then with itself. This costs n
    x survivors comparisons, without a Python step for each candidate.

    Args:
        count: number of candidates, best first.
        limit: largest number of indices to return.
        overlaps: takes the indices of better and of worse candidates; returns which better ones
            suppress which worse ones, bool [better, worse].
    """
    kept = np.empty(0, dtype=np.intp)
    for start in range(0, count, BLOCK):
        block = np.arange(start, min(start + BLOCK, count))
        if start > 0:
            block = block[~overlaps(kept, block).any(axis=0)]
        block = block[_find_survivors(overlaps(block, block) & WORSE[: len(block), : len(block)])]
        kept = np.concatenate([kept, block])
        if len(kept) >= limit:
            break
    return kept[:limit]


def _find_survivors(overlaps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which boxes survive, bool [n].

    A box survives unless a better surviving box overlaps it. Each round decides at least one more
    box, so the fixed point is the greedy result. Real images take 2 to 6 rounds.

    Args:
        overlaps: bool [n, n], strictly upper triangular: the box of the row suppresses the box of
            the column.
    """
    alive: NDArray[np.bool_] = np.ones(len(overlaps), dtype=np.bool_)
    while True:
        unsuppressed: NDArray[np.bool_] = np.logical_not(overlaps[alive].any(axis=0))
        if np.array_equal(unsuppressed, alive):
            return alive
        alive = unsuppressed


def find_overlaps(
    better: NDArray[np.float32],
    worse: NDArray[np.float32],
    iou: float,
    *,
    over_smaller: bool = False,
) -> NDArray[np.bool_]:
    """Return which boxes of one group overlap by more than `iou`, bool [better, worse].

    Comparisons are several times cheaper than arithmetic and most pairs do not overlap, so the IoU
    is computed only for overlapping pairs.

    Args:
        better: float32 [5, n], rows x1 y1 x2 y2 group.
        worse: float32 [5, m], with the same rows.
        iou: threshold, 0 to 1.
        over_smaller: divide the intersection by the smaller area instead of the union.
    """
    left, top, right, bottom, group = better[:, :, None]
    found = np.empty((better.shape[1], worse.shape[1]), dtype=np.bool_)
    np.equal(group, worse[4], out=found)
    found &= left < worse[2]
    found &= right > worse[0]
    found &= top < worse[3]
    found &= bottom > worse[1]
    pairs = np.flatnonzero(found)  # several times faster than np.nonzero in two dimensions
    first, second = np.divmod(pairs, found.shape[1])
    a, b = better[:, first], worse[:, second]
    common = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    common *= np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    areas = (a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1])
    whole = np.minimum(*areas) if over_smaller else areas[0] + areas[1] - common
    # Very thin boxes have an area of 0 in float32. The minimum avoids 0 / 0: they overlap nothing.
    quotient = common / np.maximum(whole, np.finfo(np.float32).tiny)
    # Not `common > iou * union`: the rounded quotient 7/10 is never above 0.7, the product may be.
    found.ravel()[pairs] = quotient > iou
    return found


def rotated_detections(
    rotated: Rows,
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    overlap: Overlap = probiou,
) -> Detections:
    """Filter, sort and suppress the rotated candidates of one image, as `detections` does.

    Args:
        rotated: rows [n, 5], cx cy w h in pixels and the angle in radians.
        scores: float [n].
        class_ids: int [n].
        options: options of the request.
        overlap: measure of overlap that `options.iou` is compared with.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        boxes = bounds(rotated)
    order = rank(boxes, scores, class_ids, options)
    groups = np.zeros(len(order)) if options.agnostic else class_ids[order]
    kept = order[rotated_greedy(rotated[order], groups, options.iou, options.max_det, overlap)]
    return replace(take(boxes, scores, class_ids, kept), rotated=regular(rotated[kept]))


def rotated_greedy(
    rotated: Rows,
    groups: NDArray[np.number],
    iou: float,
    limit: int,
    overlap: Overlap = probiou,
) -> NDArray[np.intp]:
    """Return the indices, ascending, of at most `limit` rectangles that survive suppression.

    A rectangle is dropped if its overlap with a better surviving rectangle exceeds `iou`.

    Args:
        rotated: rows [n, 5], cx cy w h angle, best first.
        groups: [n]; rectangles of different groups never suppress each other.
        iou: threshold, 0 to 1.
        limit: largest number of rectangles to return.
        overlap: measure of overlap.
    """
    table, farthest = axes(rotated), _farthest(iou)
    diagonals = np.square(table[2:]).sum(axis=0)

    def overlaps(better: NDArray[np.intp], worse: NDArray[np.intp]) -> NDArray[np.bool_]:
        x, y = table[:2, better, None] - table[:2, None, worse]
        reach = farthest * (diagonals[better, None] + diagonals[worse])
        near: NDArray[np.bool_] = (x**2 + y**2 <= reach) & (groups[better, None] == groups[worse])
        pairs = np.flatnonzero(near)
        one, other = np.divmod(pairs, len(worse))
        near.ravel()[pairs] = overlap(table[:, better[one]], table[:, worse[other]]) > iou
        return near

    return suppress_greedily(len(rotated), limit, overlaps)


def _farthest(iou: float) -> float:
    """Return the squared distance of centres beyond which no pair overlaps by more than `iou`.

    The unit is the sum of both squared half diagonals, and the bound holds for `iou` and `probiou`.
    Rectangles that touch have centres at most both half diagonals apart, so their squared distance
    is at most 2 in this unit. For two Gaussians, the Bhattacharyya distance is at least 3/4 of the
    squared distance in this unit.
    """
    coefficient = iou * (2 - iou)
    return max(2.0, -math.log(coefficient) * 4 / 3) if coefficient else math.inf
