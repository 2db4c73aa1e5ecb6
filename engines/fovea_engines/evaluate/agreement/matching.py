"""Pairs the detections of two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect import rotated_overlap
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.rotated import bounds
from fovea_engines.detect.rotated_overlap import axes

MIN_IOU = 0.5
# Added to the sides of boxes, pixels: one that its image's border has cut to a line has no area.
_LINE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Paired detections of two models on one image.

    Attributes:
        want: int [n], indices of the source's detections.
        have: int [n], indices of their partners among the engine's.
        iou: float [n], overlap of the partners.
        missed: number of the source's detections without a partner; `extra` of the engine's.
    """

    want: NDArray[np.intp]
    have: NDArray[np.intp]
    iou: NDArray[np.float64]
    missed: int
    extra: int

    @property
    def total(self) -> float:
        """Return the number of detections; one that only one model finds counts as half."""
        return len(self.iou) + (self.missed + self.extra) / 2

    @property
    def lost(self) -> float:
        """Return the part of `total` that the models do not share: 0 when they agree."""
        return self.total - float(self.iou.sum())

    @property
    def quality(self) -> float:
        """Return the panoptic quality, 0 to 1 for full agreement (arXiv 1801.00868, eq. 1)."""
        return 1 - self.lost / self.total if self.total else 1.0


def match(want: Detections, have: Detections, conf: float, margin: float) -> Matching:
    """Pair detections of the same class that overlap by half or more, best score first.

    Both models' reach down to a score of `conf - margin`. Those over `conf` count; a partner may
    score less by `margin`: .249 for .251 is no loss.
    """
    shared = overlap(want, have)
    same = np.where(want.class_ids[:, None] == have.class_ids, shared, 0.0)
    pairs: list[tuple[int, int]] = []
    for i in range(len(want) if len(have) else 0):
        best = int(np.argmax(same[i]))
        if same[i, best] >= MIN_IOU:
            pairs.append((i, best))
            same[:, best] = 0.0
    ours = np.array([i for i, _ in pairs], np.intp)
    theirs = np.array([j for _, j in pairs], np.intp)
    counts = np.maximum(want.scores[ours], have.scores[theirs]) >= conf
    lowest = np.minimum(want.scores[ours], have.scores[theirs])[counts]
    ours, theirs = ours[counts][lowest >= conf - margin], theirs[counts][lowest >= conf - margin]
    return Matching(
        want=ours,
        have=theirs,
        iou=shared[ours, theirs],
        missed=int((want.scores >= conf).sum() - (want.scores[ours] >= conf).sum()),
        extra=int((have.scores >= conf).sum() - (have.scores[theirs] >= conf).sum()),
    )


def overlap(want: Detections, have: Detections) -> NDArray[np.float64]:
    """Return how much objects of two models overlap, [n, m] of 0 to 1, by the shapes they have."""
    if want.rotated is not None and have.rotated is not None:
        return rotated_iou(want.rotated, have.rotated)
    return iou(want.boxes, have.boxes)


def rotated_iou(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the intersection over union [n, m] of rectangles [n, 5] and [m, 5]."""
    found = iou(bounds(one), bounds(other))
    near = np.nonzero(found)
    found[near] = rotated_overlap.iou(axes(one)[:, near[0]], axes(other)[:, near[1]])
    return found


def iou(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the intersection over union [n, m] of boxes [n, 4] and [m, 4], x1 y1 x2 y2."""
    a, b = one.astype(np.float64)[:, None], other.astype(np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + _LINE
    shared = np.clip(sides, 0, None).prod(axis=-1)
    areas = [np.clip(box[..., 2:] - box[..., :2] + _LINE, 0, None).prod(-1) for box in (a, b)]
    union = areas[0] + areas[1] - shared
    overlap: NDArray[np.float64] = np.divide(
        shared, union, out=np.zeros_like(shared), where=union > 0
    )
    return overlap
