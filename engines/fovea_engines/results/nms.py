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
"""Largest number of boxes that suppression compares; the boxes with the best scores are kept.

The limit is this high because an evaluation with conf=0.001 produces many boxes.
"""

BLOCK = 192
"""Number of boxes that are compared at once.

With smaller blocks, NumPy's overhead per call matters more: 128 boxes take 10 % more time. With
larger blocks, more pairs are compared unnecessarily, because one of their boxes is already
suppressed.
"""

WORSE = np.triu(np.ones((BLOCK, BLOCK), dtype=np.bool_), k=1)
"""Mask of the pairs to compare, [better, worse]. It is upper triangular.

Boxes are sorted by score, so a box with a higher index is worse.
"""

FARTHEST = 1e6
"""Largest valid coordinate in pixels.

Larger coordinates come from broken models, and the area of such a box may overflow float32.
"""

Overlap = Callable[[Floats, Floats], Floats]
"""Function that measures the overlap of pairs of rectangles, such as `probiou` or `iou`."""


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
        suppress: False for models that return no duplicate boxes; then boxes are only filtered and
            sorted.

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
    # These comparisons exclude NaN, because every comparison with NaN is False. They also exclude
    # infinite values.
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
    """Return the indices of the boxes that survive greedy suppression, in ascending order.

    A box is dropped if its IoU with a better surviving box exceeds `iou`.

    Args:
        boxes: float32 [n, 4], corners x1 y1 x2 y2, best first.
        groups: int [n], group of each box. Boxes of different groups never suppress each other.
            None means that all boxes are in one group.
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
    """Return the table [5, n] of boxes and groups for `find_overlaps`.

    If `groups` is None, all boxes are in one group.
    """
    if groups is None:
        groups = np.zeros(len(boxes), dtype=np.int32)
    return np.concatenate([boxes.T, groups[None].astype(np.float32)])


def suppress_greedily(
    count: int,
    limit: int,
    overlaps: Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.bool_]],
) -> NDArray[np.intp]:
    """Return the indices of the candidates that survive suppression, in ascending order.

    Each block of candidates is compared with all earlier survivors, and then with itself. The
    number of comparisons is `count` times the number of survivors, and the Python loop runs once
    per block.

    Args:
        count: number of candidates, which are sorted with the best first.
        limit: largest number of indices to return.
        overlaps: function of two arrays: the indices of better and of worse candidates. It returns
            which better candidates suppress which worse candidates, bool [better, worse].
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

    A box survives unless a better surviving box overlaps it. The function repeats this rule for all
    boxes at once until the result no longer changes. Each round fixes the result of at least one
    more box, so the final result equals greedy suppression. Real images take 2 to 6 rounds.

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

    The function first compares coordinates to find the pairs that overlap, and computes the IoU
    only for these. Most pairs do not overlap, and a comparison is several times faster than an IoU.

    Args:
        better: float32 [5, n]. The five rows are x1, y1, x2, y2 and the group.
        worse: float32 [5, m], with the same five rows.
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
    pairs = np.flatnonzero(found)  # several times faster than np.nonzero of a matrix
    first, second = np.divmod(pairs, found.shape[1])
    a, b = better[:, first], worse[:, second]
    common = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    common *= np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    areas = (a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1])
    whole = np.minimum(*areas) if over_smaller else areas[0] + areas[1] - common
    # In float32, very thin boxes have an area of 0. `np.maximum` avoids the division 0 / 0. Such
    # boxes overlap no other box.
    quotient = common / np.maximum(whole, np.finfo(np.float32).tiny)
    # Compare the quotient, and not `common > iou * union`. The rounded quotient 7/10 is never above
    # 0.7, but the rounded product might make the comparison True.
    found.ravel()[pairs] = quotient > iou
    return found


def rotated_detections(
    rotated: Rows,
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    overlap: Overlap = probiou,
) -> Detections:
    """Filter, sort and suppress the rotated boxes of one image, as `detections` does for boxes.

    Args:
        rotated: rows [n, 5], cx cy w h in pixels and the angle in radians.
        scores: float [n].
        class_ids: int [n].
        options: options of the request.
        overlap: function that measures the overlap. Its values are compared with `options.iou`.
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
    """Return the indices of the rectangles that survive suppression, in ascending order.

    A rectangle is dropped if its overlap with a better surviving rectangle exceeds `iou`.

    Args:
        rotated: rows [n, 5], cx cy w h angle, best first.
        groups: [n], group of each rectangle. Rectangles of different groups never suppress each
            other.
        iou: threshold, 0 to 1.
        limit: largest number of rectangles to return.
        overlap: function that measures the overlap of pairs.
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
    """Return the largest squared distance of two centres at which the overlap can exceed `iou`.

    The unit of the squared distance is the sum of the two squared half diagonals. The result holds
    for `iou` and for `probiou`. If two rectangles touch, the distance of their centres is at most
    the sum of both half diagonals, so its square is at most 2 in this unit. For two Gaussians, the
    Bhattacharyya distance is at least 3/4 of the squared distance in this unit.
    """
    coefficient = iou * (2 - iou)
    return max(2.0, -math.log(coefficient) * 4 / 3) if coefficient else math.inf
