"""Compares what two versions of a model find on one image, in the terms of their task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_preprocess.errors import UnsupportedModel

Size = Literal["small", "medium", "large"]
Verdict = Literal["same", "missed", "extra"]

# Of COCO: sides of a square as large, pixels of the image.
_SMALL, _MEDIUM = 32, 96


class ComparedObject(NamedTuple):
    """An object of the live version, or one that only the candidate finds.

    `overlap` and `drift` (of the score) are of both versions; None where only one has it.
    """

    class_id: int
    size: Size | None
    verdict: Verdict
    overlap: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """The results of both versions for one image.

    Attributes:
        differing: things that differ, of `total`: objects, or the image as a whole.
        lost: how bad it is, to find the worst images.
        overlap_of: what `overlap` of the objects measures; empty where there are none.
        changes: pairs of a class of the live version and the candidate's for the same thing.
        shared: how far both are the same, 0 to 1, of results that are no objects or classes.
    """

    differing: float
    total: float
    lost: float
    overlap_of: str = ""
    objects: list[ComparedObject] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    shared: float | None = None


def compare(live: TaskResult, candidate: TaskResult, options: PredictOptions) -> ImageComparison:
    """Compare the results for one image, which both versions found with these options.

    Raises:
        UnsupportedModel: results of this kind cannot be compared.
    """
    match live, candidate:
        case Detections(), Detections():
            return _objects(live, candidate, options.conf)
        case Classes(), Classes():
            return _classes(live, candidate)
    if (shared := live.shared(candidate)) is None:
        raise UnsupportedModel("results of this task cannot be compared")
    return ImageComparison(1 - shared, 1, 1 - shared, shared=shared)


def _objects(live: Detections, candidate: Detections, conf: float) -> ImageComparison:
    """Compare as the agreement of a build does.

    No version says what it finds under the threshold of the request, so objects count from
    somewhat above it: one that scores less by `MARGIN` in the other is no loss.
    """
    counted = max(conf, CONF - MARGIN) + MARGIN
    found = match(live, candidate, counted, MARGIN)
    drift = candidate.scores[found.have] - live.scores[found.want]
    objects = [
        ComparedObject(
            int(live.class_ids[i]), _size(live.boxes[i]), "same", float(overlap), float(off)
        )
        for i, overlap, off in zip(found.want.tolist(), found.overlap, drift, strict=True)
    ]
    alone = [
        np.setdiff1d(np.flatnonzero(one.scores >= counted), paired)
        for one, paired in ((live, found.want), (candidate, found.have))
    ]
    parts = [one.take(left) for one, left in zip((live, candidate), alone, strict=True)]
    missed, extra = parts
    verdicts: tuple[Verdict, ...] = ("missed", "extra")
    for one, verdict in zip(parts, verdicts, strict=True):
        rows = zip(one.class_ids.tolist(), one.boxes, strict=True)
        objects += [ComparedObject(class_id, _size(box), verdict) for class_id, box in rows]
    # The same thing under another name: of what is left, those that overlap, whatever the class.
    ours, theirs = (replace(one, class_ids=np.zeros_like(one.class_ids)) for one in parts)
    renamed = match(ours, theirs, counted, MARGIN)
    changes = zip(
        missed.class_ids[renamed.want].tolist(),
        extra.class_ids[renamed.have].tolist(),
        strict=True,
    )
    return ImageComparison(
        found.missed + found.extra,
        len(objects),
        found.lost,
        found.overlap_of,
        objects,
        list(changes),
    )


def _classes(live: Classes, candidate: Classes) -> ImageComparison:
    """Compare the first class."""
    want, have = int(live.class_ids[0]), int(candidate.class_ids[0])
    drift = float(candidate.scores[0] - live.scores[0])
    if want == have:
        return ImageComparison(0, 1, 0, objects=[ComparedObject(want, None, "same", None, drift)])
    objects = [ComparedObject(want, None, "missed"), ComparedObject(have, None, "extra")]
    lost = 1 + float(live.scores[0])
    return ImageComparison(1, 1, lost, objects=objects, changes=[(want, have)])


def _size(box: NDArray[np.float32]) -> Size:
    x1, y1, x2, y2 = box.tolist()
    side = ((x2 - x1) * (y2 - y1)) ** 0.5
    return "small" if side < _SMALL else "medium" if side < _MEDIUM else "large"
