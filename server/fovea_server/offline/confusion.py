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
# Confidences from which the best one is chosen: all numbers with three decimals between 0 and 1.
_CONFIDENCES = np.arange(1, 1000) / 1000

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The figures of one class.

    Attributes:
        labelled: number of objects or images that are labelled with the class.
        precision: fraction of the objects or images found as this class that are labelled with it;
            0 if none is found.
        recall: fraction of the objects or images labelled with this class that are found as it.
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
        unit: unit of the counts, "object" or "image".
        counts: number of objects or images, by labelled class and then by found class.
        background: name of the row for objects that are found where none is labelled, and of the
            column for labelled objects that are not found; None if images are counted.
        confidence: lowest score of the counted detections; None if images are counted.
    """

    unit: Literal["object", "image"]
    counts: dict[str, dict[str, int]]
    background: str | None = None
    confidence: float | None = None

    @property
    def names(self) -> list[str]:
        """The classes in the labels or results, sorted; the background comes last."""
        found = dict.fromkeys(name for row in self.counts.values() for name in row)
        names = sorted({**self.counts, **found}.keys() - {self.background})
        return names if self.background is None else [*names, self.background]

    @cached_property
    def classes(self) -> dict[str, ClassFigures]:
        """Precision and recall of each class of the labels."""
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
        """Return the mean of precision, recall or F1 over the classes of the labels."""
        figures = [float(getattr(each, figure)) for each in self.classes.values()]
        return fmean(figures) if figures else 0.0


def image_confusion(pairs: Iterable[tuple[str, str]]) -> Confusion:
    """Make the confusion matrix of a classifier.

    `pairs` has the labelled class and the found class with the highest score, for each image.
    """
    return Confusion("image", _nest_counts(Counter(pairs)))


def object_confusion(
    dataset: Dataset,
    answers: Sequence[CompactDetections],
    conf: float | None = None,
    *,
    others: bool = True,
) -> Confusion:
    """Make the confusion matrix of detections with a score of at least `conf`.

    Detections are matched with labelled objects as in `mean_ap`, with an overlap of at least 0.5.
    In descending order of scores, each detection is matched with the unmatched object of its class
    that overlaps it most. Detections that match a crowd do not count (cocoapi's `cocoeval.py`).
    Then the remaining detections and objects are matched in the same way, regardless of their
    classes; these matches are the confusions. A detection without a match counts as found on the
    background, and an object without a match counts as missed.

    Args:
        dataset: labels of the objects.
        answers: detections for each image of the dataset.
        conf: lowest score of the counted detections. If it is None, the score with the highest mean
            F1 of the classes is used (F1: van Rijsbergen, Information Retrieval, 1979).
        others: count also detections of classes without labelled objects.
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
    """Return the number of the matched object for the number of each matched detection."""
    judge.params.iouThrs = np.array([_OVERLAP])
    judge.params.areaRng, judge.params.areaRngLbl = judge.params.areaRng[:1], ["all"]
    if not judge.cocoDt.anns:
        return {}
    judge.params.catIds = sorted({one["category_id"] for one in judge.cocoDt.anns.values()})
    # All detections of an image count, because the confidence already limits their number.
    judge.params.maxDets = [len(judge.cocoDt.anns)]
    judge.evaluate()
    judge.accumulate()
    pairs = (pair.split("_") for pair in judge.eval["matched"])
    return {int(one): int(other) for one, other in pairs}


def _best_confidence(
    objects: Iterable[_Row], found: dict[int, _Row], hits: dict[int, int]
) -> float:
    """Return the confidence with the highest mean F1 of the classes that have labelled objects."""
    labelled = Counter(one["category_id"] for one in objects)
    scores: dict[int, list[float]] = {class_id: [] for class_id in labelled}
    right: dict[int, list[float]] = {class_id: [] for class_id in labelled}
    for number, one in found.items():
        if (class_id := one["category_id"]) in labelled:
            scores[class_id].append(one["score"])
            if number in hits:
                right[class_id].append(one["score"])
    # The precision P is hits / found, and the recall R is hits / labelled. Then
    # F1 = 2 PR / (P + R) = 2 hits / (found + labelled).
    curves = [
        2 * _count_reaching(right[class_id]) / (_count_reaching(scores[class_id]) + count)
        for class_id, count in labelled.items()
    ]
    return float(_CONFIDENCES[np.argmax(sum(curves, np.zeros(len(_CONFIDENCES))))])


def _count_reaching(scores: list[float]) -> NDArray[np.float64]:
    """Return, for each confidence, the number of scores that are equal to it or higher."""
    below = np.searchsorted(np.sort(scores), _CONFIDENCES)
    return np.asarray(len(scores) - below, np.float64)


def _nest_counts(pairs: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the counts as nested dicts: by labelled class, then by found class, both sorted."""
    nested: dict[str, dict[str, int]] = {}
    for (label, found), count in sorted(pairs.items()):
        nested.setdefault(label, {})[found] = count
    return nested
