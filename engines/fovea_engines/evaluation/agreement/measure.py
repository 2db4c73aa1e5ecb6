"""Measures the agreement between an engine and its source model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, Matching, match
from fovea_engines.evaluation.agreement.rows import align
from fovea_engines.evaluation.reference import Outputs, Sample
from fovea_engines.heads.base import Head
from fovea_engines.repository.figures import Agreement, WorstImage
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import MAX_TOP_K, PredictOptions
from fovea_engines.session import Array

NO_NUMBER = 1e30
"""Value in place of a difference that is NaN or infinite. JSON cannot represent these values."""

Floats = NDArray[np.float64]

_WORST = 5
# Number of a classifier's best classes that are compared.
_FIRST = 5


def measure(head: Head | None, pairs: Iterable[tuple[Sample, Outputs]]) -> Agreement:
    """Compare an engine's outputs with the outputs of its source model.

    For detectors, the detections after suppression are compared, if their score is at least .25.
    For classifiers, the best five classes of the source model are compared. Other results are
    compared by `TaskResult.similarity`. If there is no head, or if there are no detections, the raw
    outputs are compared.
    """
    return _agreement([_compare(head, one, have) for one, have in pairs])


def measure_detections(pairs: Iterable[tuple[str, Detections, Detections]]) -> Agreement:
    """Compare the detections of two detectors. The form of their raw outputs may differ.

    Args:
        pairs: for each image its name, the source model's detections, and the other model's
            detections. Both must contain all detections with a score of at least `CONF - MARGIN`.
    """
    return _agreement([_compare_objects(*pair) for pair in pairs])


def measure_outputs(pairs: Iterable[tuple[str, Outputs, Outputs]]) -> Agreement:
    """Compare the raw outputs of two models.

    Args:
        pairs: for each image its name, the source model's outputs, and the other model's outputs.
    """
    return _agreement([_compare_outputs(_Figures(name), *outputs) for name, *outputs in pairs])


def _agreement(figures: list[_Figures]) -> Agreement:
    matched = [one.matching for one in figures if one.matching is not None]
    orders = [one.same_order for one in figures if one.same_order is not None]
    alike = [one for one in figures if one.shared is not None]
    shared = [one.quality for one in alike]
    total = sum(matching.total for matching in matched)
    return Agreement(
        images=len(figures),
        detections=sum(one.detections for one in figures),
        missed=sum(matching.missed for matching in matched),
        extra=sum(matching.extra for matching in matched),
        overlap=matched[0].overlap_of if matched else "IoU",
        mean_iou=_mean([matching.overlap for matching in matched]),
        score_drift=_mean([one.drift for one in figures]),
        # Images without detections are used only if there are no detections on any image.
        quality=1 - sum(one.lost for one in figures) / (total or len(shared))
        if total or shared
        else _closeness(figures),
        box_px=float(max(one.box_px for one in figures)),
        score=max(float(np.abs(one.drift).max(initial=0)) for one in figures),
        output_error=max(one.output_error for one in figures),
        same_top=_mean([same[:1] for same in orders]),
        same_order=_mean(orders),
        shared=sum(shared) / len(shared) if shared else None,
        shares=alike[0].shares if alike else "",
        worst=tuple(
            one.worst
            for one in sorted(figures, key=lambda one: -one.lost)[:_WORST]
            if one.worst.quality < 1
        ),
        replaced=sum(one.replaced for one in figures),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Figures:
    name: str
    matching: Matching | None = None
    detections: int = 0
    drift: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    box_px: float = 0.0
    output_error: float = 0.0
    energies: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    same_order: NDArray[np.bool_] | None = None
    shared: float | None = None
    shares: str = ""
    replaced: bool = False

    @property
    def quality(self) -> float:
        if self.shared is not None:
            return self.shared
        return _closeness([self]) if self.matching is None else self.matching.quality

    @property
    def lost(self) -> float:
        """Return how much this image lowers the quality over all images."""
        return 1 - self.quality if self.matching is None else self.matching.lost

    @property
    def worst(self) -> WorstImage:
        found = WorstImage(self.name, round(self.quality, 4), round(self.lost, 4))
        if self.matching is None:
            return found
        return replace(found, missed=self.matching.missed, extra=self.matching.extra)


def _compare(head: Head | None, sample: Sample, have: Outputs) -> _Figures:
    figures = _Figures(sample.name)
    if head is not None:
        options = PredictOptions(conf=CONF - MARGIN, top_k=MAX_TOP_K)
        want, found = (head.decode(each, 0, options) for each in (sample.want, have))
        if isinstance(want, Detections) and isinstance(found, Detections):
            figures = _compare_objects(sample.name, want, found)
        elif isinstance(want, Classes) and isinstance(found, Classes):
            figures = _compare_order(sample.name, want, found)
        else:
            figures = replace(figures, shared=want.similarity(found), shares=want.compared)
    figures = replace(figures, replaced=sample.replaced)
    return _compare_outputs(figures, sample.want, align(sample.want, have, sample.ranked))


def _compare_outputs(figures: _Figures, want: Outputs, have: Outputs) -> _Figures:
    off = {name: difference(array, have[name]) for name, array in want.items()}
    return replace(
        figures,
        output_error=max(_largest_error(array, off[name]) for name, array in want.items()),
        energies={
            name: (_energy(off[name]), _energy(finite(array))) for name, array in want.items()
        },
    )


def _compare_objects(name: str, want: Detections, have: Detections) -> _Figures:
    matching = match(want, have, CONF, MARGIN)
    drift = have.scores[matching.have] - want.scores[matching.want]
    corners = np.abs(have.boxes[matching.have] - want.boxes[matching.want])
    detections = int((want.scores >= CONF).sum())
    return _Figures(name, matching, detections, drift, float(corners.max(initial=0)))


def _compare_order(name: str, want: Classes, have: Classes) -> _Figures:
    """Compare the ranks and the scores of the first classes."""
    first = want.class_ids[:_FIRST]
    places = np.full(len(first), -1)
    places[: len(have)] = have.class_ids[: len(first)]
    theirs = dict(zip(have.class_ids.tolist(), have.scores.tolist(), strict=True))
    scores = np.array([theirs.get(each, 0.0) for each in first.tolist()], np.float32)
    return _Figures(name, drift=scores - want.scores[: len(first)], same_order=places == first)


def _closeness(figures: Sequence[_Figures]) -> float:
    """Return 1 minus the largest relative error of an output over all images."""
    outputs = figures[0].energies
    errors = (_relative_error([one.energies[name] for one in figures]) for name in outputs)
    return 1 - max(errors, default=0.0)


def _relative_error(energies: Sequence[tuple[float, float]]) -> float:
    """Return the norm of the error divided by the norm of the source model's values.

    If the result is larger than 1 or NaN, return 1.
    """
    error, energy = (sum(one) for one in zip(*energies, strict=True))
    if error == 0:
        return 0.0
    ratio = float(np.sqrt(error / energy)) if energy else 1.0
    return ratio if ratio < 1 else 1.0


def difference(want: Array, have: Array) -> Floats:
    """Return the difference of two arrays.

    The difference is 0 where both values are equal or both are NaN. If the shapes differ, it is
    infinite.
    """
    if want.shape != have.shape:
        return np.full(want.shape or 1, np.inf)
    same = (want == have) | ((want != want) & (have != have))
    return np.where(same, 0.0, have.astype(np.float64) - np.where(same, 0.0, want))


def output_error(want: Outputs, have: Outputs, rounding: float = 0.0) -> float:
    """Return the largest error of an output as a fraction of its largest value.

    The result is at most `NO_NUMBER`. For integers, such as class maps, it is at most the fraction
    of values that differ.

    Args:
        want: outputs of the source model, by name.
        have: outputs to compare.
        rounding: size of an error that is ignored.
    """
    return max(_largest_error(w, difference(w, have[name]), rounding) for name, w in want.items())


def finite(array: Array) -> Floats:
    """Return the values as float64, with 0 in place of NaN and infinity."""
    return np.where(np.isfinite(array), array, 0.0).astype(np.float64)


def _energy(values: Floats) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _largest_error(want: Array, off: Floats, rounding: float = 0.0) -> float:
    if not np.isfinite(off).all():
        return NO_NUMBER
    largest = max(float(np.abs(finite(want)).max(initial=0)), 1e-6)
    error = max(float(np.abs(off).max(initial=0)) - rounding, 0.0) / largest
    if want.dtype.kind in "iub":
        error = min(error, float((off != 0).mean()) if off.size else 0.0)
    return min(error, NO_NUMBER)


def _mean(arrays: list[NDArray[Any]]) -> float | None:
    values = np.concatenate(arrays) if arrays else np.zeros(0)
    return float(values.mean()) if len(values) else None
