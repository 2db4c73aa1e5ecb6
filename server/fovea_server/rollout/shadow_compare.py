"""Compares the results of two versions of a model for one image."""

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

# COCO's limits between small, medium and large objects. A limit is the side, in pixels, of a square
# that has the same area as the object.
_SMALL, _MEDIUM = 32, 96


class ComparedObject(NamedTuple):
    """An object that the live version, the candidate version, or both find.

    Attributes:
        class_id: class of the object.
        size: "small", "medium" or "large" by COCO's limits; None if the result has no boxes.
        verdict: "same" if both versions find the object, "missed" if only the live version finds
            it, "extra" if only the candidate finds it.
        overlap: overlap, from 0 to 1, between the object of one version and that of the other; None
            if only one version finds the object.
        drift: score of the candidate minus score of the live version; None if only one version
            finds the object.
    """

    class_id: int
    size: Size | None
    verdict: Verdict
    overlap: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """The comparison of both versions' results for one image.

    Attributes:
        differing: number of objects that only one version finds; for tasks without objects, the
            difference of the results, from 0 to 1.
        total: number of compared objects, or 1 for the image as a whole.
        lost: size of the difference, by which the worst images are chosen.
        overlap_of: name of the measure in `overlap`, for example "IoU"; empty if the task has no
            objects.
        objects: the compared objects.
        changes: pairs of class ids for objects to which the versions give different classes: first
            the live version's class, then the candidate's.
        shared: similarity from 0 to 1, for tasks without objects and classes; otherwise None.
    """

    differing: float
    total: float
    lost: float
    overlap_of: str = ""
    objects: list[ComparedObject] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    shared: float | None = None


def compare(live: TaskResult, candidate: TaskResult, options: PredictOptions) -> ImageComparison:
    """Compare the results of both versions for one image and the same options.

    Raises:
        UnsupportedModel: results of this task cannot be compared.
    """
    match live, candidate:
        case Detections(), Detections():
            return _objects(live, candidate, options.conf)
        case Classes(), Classes():
            return _classes(live, candidate)
    if (shared := live.similarity(candidate)) is None:
        raise UnsupportedModel("results of this task cannot be compared")
    return ImageComparison(1 - shared, 1, 1 - shared, shared=shared)


def _objects(live: Detections, candidate: Detections, conf: float) -> ImageComparison:
    """Match the objects of both versions, as a build does for an engine and its source.

    The scores of an object may differ by up to `MARGIN`, and neither version returns objects with
    scores below the request's threshold. So an object counts only if its score is at least `CONF`,
    and at least the threshold plus `MARGIN`.
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
    # Unmatched objects are matched again without their classes. A pair that overlaps is one object
    # to which the versions give different classes.
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
    """Compare the class with the highest score in both results."""
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
