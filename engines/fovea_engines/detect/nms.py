"""Greedy non-maximum suppression, exact, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions

MAX_CANDIDATES = 30_000
"""Most boxes that enter suppression, best first; what evaluation at conf .001 asks for."""

BLOCK = 192
"""Boxes settled at once. Fewer pay numpy's overhead more often (128: a tenth more time), more
compare pairs that suppression would have spared."""

WORSE = np.triu(np.ones((BLOCK, BLOCK), dtype=np.bool_), k=1)
"""Which columns come after a row."""

FARTHEST = 1e6
"""Largest sound coordinate, pixels: beyond it an output is broken, and areas leave float32."""


def detections(
    boxes: NDArray[np.floating],
    scores: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    options: PredictOptions,
    *,
    suppress: bool = True,
) -> Detections:
    """Filter, order and suppress one image's candidates.

    Args:
        boxes: float [n, 4], corners x1 y1 x2 y2 in pixels. Boxes that are not finite, farther out
            than `FARTHEST` or without area are dropped.
        scores: float [n]; those that are not finite are dropped, those over 1 become 1.
        class_ids: int [n].
        options: what the request asked for.
        suppress: False for a head that has no duplicates to suppress.

    Returns:
        At most `options.max_det` detections in arrays of their own, by score descending, and
        equal scores in the order given.
    """
    x1, y1, x2, y2 = boxes.T
    # Each comparison is False for NaN, and together they leave no infinity.
    sound = (x1 < x2) & (y1 < y2) & (scores >= options.conf) & (scores < np.inf)
    sound &= (x1 > -FARTHEST) & (y1 > -FARTHEST) & (x2 < FARTHEST) & (y2 < FARTHEST)
    if options.classes is not None:
        sound &= np.isin(class_ids, options.classes)
    order = np.flatnonzero(sound)
    order = order[np.argsort(-scores[order], kind="stable")[:MAX_CANDIDATES]]

    boxes, scores, class_ids = boxes[order], scores[order], class_ids[order]
    if suppress:
        groups = None if options.agnostic else class_ids
        kept = greedy(boxes.astype(np.float32, copy=False), groups, options.iou, options.max_det)
    else:
        kept = np.arange(min(len(order), options.max_det))
    return Detections(
        boxes=boxes[kept].astype(np.float32, copy=False),
        scores=np.minimum(scores[kept], 1).astype(np.float32, copy=False),
        class_ids=class_ids[kept].astype(np.int32, copy=False),
    )


def greedy(
    boxes: NDArray[np.float32],
    groups: NDArray[np.integer] | None,
    iou: float,
    limit: int,
) -> NDArray[np.intp]:
    """Indices of the boxes that survive greedy suppression.

    A box is dropped when its IoU with a surviving better one exceeds `iou`. Blocks of boxes are
    compared with all survivors so far, then settled among themselves: n x survivors comparisons
    without a Python step a box, ending as soon as `limit` have survived.

    Args:
        boxes: float32 [n, 4], corners, best first.
        groups: int [n]: boxes of different groups never suppress each other; None is one group.
        iou: 0 to 1.
        limit: most survivors.

    Returns:
        intp [k], ascending.
    """
    if groups is None:
        groups = np.zeros(len(boxes), dtype=np.int32)
    table = np.concatenate([boxes.T, groups[None].astype(np.float32)])
    kept = np.empty(0, dtype=np.intp)
    for start in range(0, len(boxes), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        if start > 0:
            block = block[~_over(table[:, kept], table[:, block], iou).any(axis=0)]
        over = _over(table[:, block], table[:, block], iou) & WORSE[: len(block), : len(block)]
        block = block[_survivors(over)]
        kept = np.concatenate([kept, block])
        if len(kept) >= limit:
            break
    return kept[:limit]


def _survivors(over: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Solve "alive unless an alive better one is over me" for a strictly upper triangular [n, n].

    Each round settles at least one more box for good, so the fixed point is reached and is the
    greedy answer; real images take 2 to 6 rounds.
    """
    alive: NDArray[np.bool_] = np.ones(len(over), dtype=np.bool_)
    while True:
        settled: NDArray[np.bool_] = np.logical_not(over[alive].any(axis=0))
        if np.array_equal(settled, alive):
            return alive
        alive = settled


def _over(better: NDArray[np.float32], worse: NDArray[np.float32], iou: float) -> NDArray[np.bool_]:
    """Whether boxes of one group overlap by more than `iou`: bool [better, worse].

    Both are float32 [5, n] of x1 y1 x2 y2 group. Comparisons are several times cheaper than
    arithmetic, and most pairs do not meet at all, so only those that do are worked out.
    """
    left, top, right, bottom, group = better[:, :, None]
    over = np.empty((better.shape[1], worse.shape[1]), dtype=np.bool_)
    np.equal(group, worse[4], out=over)
    over &= left < worse[2]
    over &= right > worse[0]
    over &= top < worse[3]
    over &= bottom > worse[1]
    pairs = np.flatnonzero(over)  # several times as fast as np.nonzero of two dimensions
    first, second = np.divmod(pairs, over.shape[1])
    a, b = better[:, first], worse[:, second]
    common = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    common *= np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    # Boxes thinner than float32 resolves have no area: they overlap with nothing.
    quotient = common / np.maximum(union, np.finfo(np.float32).tiny)
    # Not `common > iou * union`: only the quotient rounds so that 7/10 is never over 0.7.
    over.ravel()[pairs] = quotient > iou
    return over
