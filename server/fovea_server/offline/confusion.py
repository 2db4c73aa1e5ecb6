"""Confusion matrices, with precision and recall of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.evaluate import CompactDetections
from fovea_engines.evaluation.mean_ap import build_index, coco_indices, judge
from fovea_engines.results.class_names import class_name

_OVERLAP = 0.5
# Confidences that are tried: every value with three decimals.
_CONFIDENCES = np.arange(1, 1000) / 1000

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The figures of one class.

    Attributes:
        labelled: number of objects or images with this label.
        precision: share of the found ones that are correct; 0 if none is found.
        recall: share of the labelled ones that are found.
    """

    labelled: int
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix, counted as in scikit-learn's `confusion_matrix`.

    Attributes:
        unit: what is counted.
        counts: count by the labelled class and the found class.
        background: name of the row for objects found where nothing is labelled, and of the column
            for labelled objects that are not found; None for images.
        confidence: lowest score that counts; None for images.
    """

    unit: Literal["object", "image"]
    counts: dict[str, dict[str, int]]
    background: str | None = None
    confidence: float | None = None

    @property
    def names(self) -> list[str]:
        """The classes in labels or results, sorted, with the background last."""
        found = dict.fromkeys(name for row in self.counts.values() for name in row)
        names = sorted({**self.counts, **found}.keys() - {self.background})
        return names if self.background is None else [*names, self.background]

    @cached_property
    def classes(self) -> dict[str, ClassFigures]:
        """The figures of each class of the labels."""
        found = Counter[str]()
        for row in self.counts.values():
            found.update(row)
        return {
            name: ClassFigures(
                sum(row.values()),
                row.get(name, 0) / found[name] if found[name] else 0.0,
                row.get(name, 0) / sum(row.values()),
            )
            for name, row in self.counts.items()
            if name != self.background
        }

    def mean(self, figure: Literal["precision", "recall", "f1"]) -> float:
        """Return the mean of a figure over the classes of the labels."""
        figures = [float(getattr(each, figure)) for each in self.classes.values()]
        return fmean(figures) if figures else 0.0


def image_confusion(pairs: Iterable[tuple[str, str]]) -> Confusion:
    """Count pairs of an image's labelled class and the first class that a classifier finds."""
    return Confusion("image", _nest_counts(Counter(pairs)))


def object_confusion(
    dataset: Dataset,
    answers: Sequence[CompactDetections],
    conf: float | None = None,
    *,
    others: bool = True,
) -> Confusion:
    """Count the detections with a score of `conf` or more.

    Objects are matched as in `mean_ap`, at an overlap of 0.5. Each detection, best score first, is
    matched with the unmatched object of its class that overlaps most. Detections that match a crowd
    do not count (cocoapi's `cocoeval.py`). Precision and recall are computed from these matches.
    Then the remaining detections and objects are matched in the same way, regardless of class:
    these matches are the confusions. All others count as found on the background, or as missed.

    Args:
        dataset: labels of the objects.
        answers: detections for each image.
        conf: lowest score that counts. None takes the score with the highest F1, averaged over the
            classes (F1: van Rijsbergen, Information Retrieval, 1979).
        others: count detections of classes that have no labels.
    """
    overlap, (labels, found) = coco_indices(dataset, answers)
    hits = _matches(judge(overlap, (labels, found), dataset))
    ignored = {
        number
        for number, one in labels.anns.items()
        if one["iscrowd"] or (overlap == "OKS" and not one["num_keypoints"])
    }
    objects = {number: one for number, one in labels.anns.items() if number not in ignored}
    own = {number: one for number, one in found.anns.items() if hits.get(number) not in ignored}
    if not others:
        labelled = {one["category_id"] for one in objects.values()}
        own = {number: one for number, one in own.items() if one["category_id"] in labelled}
    if conf is None:
        conf = _best_confidence(objects.values(), own, hits)
    own = {number: one for number, one in own.items() if one["score"] >= conf}
    hits = {number: hits[number] for number in own if number in hits}

    taken = set(hits.values())
    left = [
        build_index(index.dataset | {"annotations": rest, "categories": [{"id": 0}]})
        for index, rest in (
            (labels, [o | {"category_id": 0} for n, o in objects.items() if n not in taken]),
            (found, [o | {"category_id": 0} for n, o in own.items() if n not in hits]),
        )
    ]
    hits |= _matches(judge(overlap, left, dataset))

    names = dataset.class_names
    background = "background" if "background" not in (names or ()) else "no object"
    pairs = Counter[tuple[str, str]]()
    for number, one in own.items():
        hit = objects.pop(hits[number]) if number in hits else None
        label = background if hit is None else class_name(names, hit["category_id"])
        pairs[label, class_name(names, one["category_id"])] += 1
    for one in objects.values():
        pairs[class_name(names, one["category_id"]), background] += 1
    return Confusion("object", _nest_counts(pairs), background, conf)


def _matches(judge: Any) -> dict[int, int]:
    """Return the number of the matched object by the number of the detection."""
    judge.params.iouThrs = np.array([_OVERLAP])
    judge.params.areaRng, judge.params.areaRngLbl = judge.params.areaRng[:1], ["all"]
    if not judge.cocoDt.anns:
        return {}
    judge.params.catIds = sorted({one["category_id"] for one in judge.cocoDt.anns.values()})
    # No limit of detections per image, because the confidence limits them.
    judge.params.maxDets = [len(judge.cocoDt.anns)]
    judge.evaluate()
    judge.accumulate()
    pairs = (pair.split("_") for pair in judge.eval["matched"])
    return {int(one): int(other) for one, other in pairs}


def _best_confidence(
    objects: Iterable[_Row], found: dict[int, _Row], hits: dict[int, int]
) -> float:
    """Return the confidence with the highest mean F1 of the classes that have objects."""
    labelled = Counter(one["category_id"] for one in objects)
    scores: dict[int, list[float]] = {class_id: [] for class_id in labelled}
    right: dict[int, list[float]] = {class_id: [] for class_id in labelled}
    for number, one in found.items():
        if (class_id := one["category_id"]) in labelled:
            scores[class_id].append(one["score"])
            if number in hits:
                right[class_id].append(one["score"])
    # F1 = 2 PR / (P + R), with P = hits / found and R = hits / labelled.
    curves = [
        2 * _count_reaching(right[class_id]) / (_count_reaching(scores[class_id]) + count)
        for class_id, count in labelled.items()
    ]
    return float(_CONFIDENCES[np.argmax(sum(curves, np.zeros(len(_CONFIDENCES))))])


def _count_reaching(scores: list[float]) -> NDArray[np.float64]:
    """Return for each confidence how many scores reach it."""
    below = np.searchsorted(np.sort(scores), _CONFIDENCES)
    return np.asarray(len(scores) - below, np.float64)


def _nest_counts(pairs: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the counts by labelled class and found class, sorted."""
    nested: dict[str, dict[str, int]] = {}
    for (label, found), count in sorted(pairs.items()):
        nested.setdefault(label, {})[found] = count
    return nested
