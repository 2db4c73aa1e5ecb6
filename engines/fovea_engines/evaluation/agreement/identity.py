"""Checks that an engine of full precision computes just what its source model does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.measure import NO_NUMBER, output_error
from fovea_engines.evaluation.agreement.overlap import overlap
from fovea_engines.evaluation.agreement.rows import align
from fovea_engines.evaluation.reference import Outputs, Sample
from fovea_engines.heads.base import Detector
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import MAX_DETECTIONS, PredictOptions
from fovea_engines.results.rotated import bounds
from fovea_engines.session import Array
from fovea_preprocess.errors import Disagreement

MAX_BOX_PX = 1.0
MAX_SCORE = 0.01
# Of a raw output, over its largest value; decides where there are no detections to compare.
MAX_OUTPUT_ERROR = 0.01
# Of one column of a head, such as the scores of one class in all cells, over its largest value.
# Engines that are right stay under .02, and two classes of a trained model that are swapped reach
# .2 and more, also where no image shows them (docs/how-to/precision.md).
MAX_COLUMN_ERROR = 0.1
# Of a mask with that of the same object. Rounding moves single pixels of its edge.
MIN_MASK_IOU = 0.8
# A probability next to 1 is rounded by so much, and some runtimes take small ones from it.
_ROUNDING = float(np.finfo(np.float32).eps)

# Compared is what scores over this, and on an image without much to find the best few.
_CONF = 0.05
_AT_MIN = 20
# From this score on, the default threshold of a request, a box counts in full.
_FULL_WEIGHT = 0.25


@dataclass(slots=True)
class IdentityCheck:
    """Compares images that pass through it, before suppression.

    The difference of a box is multiplied by a weight. It is 1 from a score of .25 on, the default
    threshold of a request, and falls in proportion to the score under that. On an image on which
    all score less, the best score has weight 1.

    Attributes:
        detections: of the source model that were compared.
        box_px: largest weighted difference of a box corner or a keypoint, pixels of the model's
            input.
        score: largest difference of a score.
    """

    head: Detector | None
    detections: int = 0
    box_px: float = 0.0
    score: float = 0.0

    def each(self, pairs: Iterable[tuple[Sample, Outputs]]) -> Iterator[tuple[Sample, Outputs]]:
        """Pass on samples with the engine's answers.

        Raises Disagreement if a box or a keypoint is off by more than 1 px of the model's input,
        weighted, a score by more than 0.01, a detection is missing or extra, a mask overlaps by
        less than 0.8, a column of the head or a prototype of masks is off by more than 10 %; or,
        where the source model has no detection of any score, a raw output is off by more than 1 %
        of its largest value.
        """
        for sample, have in pairs:
            self._check(sample, have)
            yield sample, have

    def _check(self, sample: Sample, have: Outputs) -> None:
        output_error = _output_error(sample, have)
        if self.head is not None:
            best = _candidates(self.head, sample.want, 0.0, _AT_MIN).scores
            conf = min(_CONF, float(best.min(initial=_CONF)))
            # Lower than compared: the partner of what just reaches the threshold may not.
            lowest = conf - min(MAX_SCORE, conf / 5)
            want = _candidates(self.head, sample.want, lowest)
            if len(want):
                found = _candidates(self.head, have, lowest)
                box_px, score = compare_detections(sample.name, want, found, conf)
                self.detections += int((want.scores >= conf).sum())
                self.box_px, self.score = max(self.box_px, box_px), max(self.score, score)
                _check_columns(sample.name, self.head, sample.want, have)
                _check_masks(sample.name, self.head, sample.want, have)
                return
        if not output_error <= MAX_OUTPUT_ERROR:
            raise Disagreement(
                f"on {sample.name} a raw output is {output_error:.2g} of its largest value off "
                f"(at most {MAX_OUTPUT_ERROR} is allowed): try another --backend"
            )


def _check_columns(name: str, head: Detector, want: Outputs, have: Outputs) -> None:
    """Compare what the best boxes do not show, such as classes that are not on the image."""
    found = head.tables(have)
    for what, expected in head.tables(want).items():
        # `_output_error` has checked that both are finite at the same places.
        off, size = (
            np.abs(values).max(axis=1, where=np.isfinite(expected), initial=0)
            for values in (found[what].astype(np.float32) - expected, expected)
        )
        errors = np.maximum(off - _ROUNDING, 0) / np.maximum(size, _ROUNDING)
        worst = int(errors.argmax())
        # Negations catch NaN, too.
        if not errors[worst] <= MAX_COLUMN_ERROR:
            raise Disagreement(
                f"on {name} the best detections agree, but column {worst} of the {what} (of "
                f"{len(errors)}, from 0) is {errors[worst]:.2g} of its largest value off (at most "
                f"{MAX_COLUMN_ERROR} is allowed): try another --backend"
            )


def _check_masks(name: str, head: Detector, want: Outputs, have: Outputs) -> None:
    """Compare the masks of the best objects, which may come in an order that is not fixed."""
    best, other = (
        head.decode(outputs, 0, PredictOptions(conf=_CONF, iou=1.0, max_det=most))
        for outputs, most in ((want, _AT_MIN), (have, 2 * _AT_MIN))
    )
    if best.masks is None or not len(best) or not len(other):
        return
    least = float(overlap(best, other).max(axis=1).min())
    if not least >= MIN_MASK_IOU:
        raise Disagreement(
            f"on {name} the best boxes agree, but one mask of the source model overlaps by "
            f"{least:.2f} at most with one of the engine's ({MIN_MASK_IOU} is asked for): try "
            "another --backend"
        )


def compare_detections(
    name: str, want: Detections, have: Detections, conf: float
) -> tuple[float, float]:
    """Return the largest weighted difference of a box corner, pixels, and the largest of a score.

    From a score of `conf` on a detection must have a partner, which may score somewhat less; `name`
    is that of the image, for the error. Raises as `IdentityCheck.each`.
    """
    box_px = score = 0.0
    full = np.clip(want.scores.max(), np.finfo(np.float32).tiny, _FULL_WEIGHT)
    for one, other, where in ((want, have, "source model"), (have, want, "engine")):
        compared = int((one.scores >= conf).sum())
        off = _nearest(one, other, np.minimum(one.scores / full, 1))
        off_px, off_score = (values[:compared] for values in off)
        lost = np.flatnonzero(~((off_px <= MAX_BOX_PX) & (off_score <= MAX_SCORE)))
        if len(lost):
            first = lost[0]
            box = " ".join(f"{corner:.1f}" for corner in one.boxes[first])
            nearest = (
                f"the nearest of the other is {off_px[first]:.2f} px (weighted by score) and "
                f"{off_score[first]:.3f} off"
                if np.isfinite(off_px[first])
                else "the other has none of that class"
            )
            raise Disagreement(
                f"on {name} the {where} finds class {one.class_ids[first]} at [{box}] with score "
                f"{one.scores[first]:.3f}, and {nearest} ({len(lost)} of {compared} differ; at "
                f"most {MAX_BOX_PX} px and {MAX_SCORE} are allowed): try another --backend"
            )
        box_px = max(box_px, float(off_px.max(initial=0)))
        score = max(score, float(off_score.max(initial=0)))
    return box_px, score


def _candidates(
    head: Detector, outputs: Mapping[str, Array], conf: float, most: int = MAX_DETECTIONS
) -> Detections:
    # Nothing is suppressed: a difference of 1e-6 would decide which of two equal boxes is left.
    # Masks are sums of columns and prototypes, which are compared as they are.
    options = PredictOptions(conf=conf, iou=1.0, max_det=most, mask="none")
    return head.decode(outputs, 0, options)


def _nearest(
    one: Detections, other: Detections, weights: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how far, weighted, the closest other of its class is from each; inf for none."""
    off = np.full((2, len(one)), np.inf, np.float32)
    edges, others = _edges(one), _edges(other)
    # Class by class: an untrained network finds thousands of boxes.
    for each in np.unique(one.class_ids):
        mine, its = (np.flatnonzero(found.class_ids == each) for found in (one, other))
        if not len(its):
            continue
        off_px = np.zeros((len(mine), len(its)), np.float32)
        for a, b in zip(edges[mine].T, others[its].T, strict=True):
            np.maximum(off_px, np.abs(a[:, None] - b), out=off_px)
        off_px *= weights[mine, None]
        off_score = np.abs(one.scores[mine, None] - other.scores[its])
        best = np.argmin(np.maximum(off_px / MAX_BOX_PX, off_score / MAX_SCORE), axis=1)
        rows = np.arange(len(mine))
        off[:, mine] = off_px[rows, best], off_score[rows, best]
    return off[0], off[1]


def _edges(found: Detections) -> NDArray[np.float32]:
    """Return the edges of the boxes, pixels, [n, 4]; of rotated ones [n, 8], of keypoints x y too.

    The upright box is the same for an angle and its negative, so that of a rectangle turned by an
    eighth follows. All are continuous where w and h, or both ends of the angle, change places.
    """
    parts = [found.boxes]
    if found.rotated is not None:
        parts.append(bounds(found.rotated + np.array([0, 0, 0, 0, np.pi / 4], np.float32)))
    if found.keypoints is not None:
        parts.append(found.keypoints[..., :2].reshape(len(found), -1))
    return np.concatenate(parts, axis=1)


def _output_error(sample: Sample, have: Outputs) -> float:
    for output, expected in sample.want.items():
        if expected.shape != (actual := have[output]).shape:
            raise Disagreement(
                f"on {sample.name} an output is {list(actual.shape)}, and in the source model "
                f"{list(expected.shape)}: try another --backend"
            )
    rows = align(sample.want, have, sample.ranked)
    errors = {
        name: output_error({name: array}, rows, _ROUNDING) for name, array in sample.want.items()
    }
    if broken := next((name for name, error in errors.items() if error == NO_NUMBER), None):
        whose = "OpenVINO's of the source" if sample.replaced else "the source model's"
        raise Disagreement(
            f"on {sample.name} output {broken} is NaN or infinite where {whose} is not, or the "
            "reverse: try another --backend"
        )
    return max(errors.values(), default=0.0)
