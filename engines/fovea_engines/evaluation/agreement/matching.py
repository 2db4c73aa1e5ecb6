"""Pairs the detections of two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.overlap import overlap, overlap_of
from fovea_engines.repository.figures import Overlap
from fovea_engines.results.detections import Detections

CONF = 0.25
MARGIN = 0.05
MIN_OVERLAP = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Pairs of detections of two models on one image.

    Attributes:
        want: int [n], index of the source model's detection in each pair.
        have: int [n], index of the engine's detection in each pair.
        overlap: float [n], overlap of each pair, 0 to 1.
        overlap_of: name of the kind of overlap, such as "IoU".
        missed: number of the source model's detections without a partner.
        extra: number of the engine's detections without a partner.
    """

    want: NDArray[np.intp]
    have: NDArray[np.intp]
    overlap: NDArray[np.float64]
    overlap_of: Overlap
    missed: int
    extra: int

    @property
    def total(self) -> float:
        """Return the number of pairs plus half the number of detections without a partner."""
        return len(self.overlap) + (self.missed + self.extra) / 2

    @property
    def lost(self) -> float:
        """Return the disagreement of the models as a part of `total`: 0 if they agree fully."""
        return self.total - float(self.overlap.sum())

    @property
    def quality(self) -> float:
        """Return the panoptic quality, 0 to 1 for full agreement (arXiv 1801.00868, eq. 1)."""
        return 1 - self.lost / self.total if self.total else 1.0


def match(want: Detections, have: Detections, conf: float, margin: float) -> Matching:
    """Pair detections of the same class that overlap by half or more, best score first.

    Both lists must contain all detections with a score of at least `conf - margin`. Only detections
    with a score of at least `conf` are counted, but the score of their partner may be lower by up
    to `margin`. For example, with a `conf` of .25, scores of .251 and .249 are a pair and not a
    missed detection.
    """
    shared = overlap(want, have)
    left = shared.copy()
    left[want.class_ids[:, None] != have.class_ids] = 0.0
    pairs: list[tuple[int, int]] = []
    for i in range(len(want) if len(have) else 0):
        best = int(np.argmax(left[i]))
        if left[i, best] >= MIN_OVERLAP:
            pairs.append((i, best))
            left[:, best] = 0.0
    ours = np.array([i for i, _ in pairs], np.intp)
    theirs = np.array([j for _, j in pairs], np.intp)
    counts = np.maximum(want.scores[ours], have.scores[theirs]) >= conf
    lowest = np.minimum(want.scores[ours], have.scores[theirs])[counts]
    ours, theirs = ours[counts][lowest >= conf - margin], theirs[counts][lowest >= conf - margin]
    return Matching(
        want=ours,
        have=theirs,
        overlap=shared[ours, theirs],
        overlap_of=overlap_of(want, have),
        missed=int((want.scores >= conf).sum() - (want.scores[ours] >= conf).sum()),
        extra=int((have.scores >= conf).sum() - (have.scores[theirs] >= conf).sum()),
    )
