"""Checks that an engine in full precision computes the same results as its source model."""

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
# Largest error of a raw output as a fraction of the output's largest value. It is checked only if
# there are no detections to compare.
MAX_OUTPUT_ERROR = 0.01
# Largest error of one column of an output, as a fraction of the column's largest value. A column is
# for example the scores of one class in all cells. The error of correct engines is under .02. If an
# engine swaps two classes of a trained model, the error is .2 or more, even if no image shows
# objects of these classes (docs/how-to/precision.md).
MAX_COLUMN_ERROR = 0.1
# Smallest IoU of the masks of one object. Rounding changes single pixels at the edge of a mask.
MIN_MASK_IOU = 0.8
# Tolerance for probabilities. Values near 1 are rounded by this amount, and some runtimes also
# subtract this amount from small values.
_ROUNDING = float(np.finfo(np.float32).eps)

# Smallest score of the detections that are compared. If an image has only a few such detections, a
# lower score is used, so that the best 20 detections are compared.
_CONF = 0.05
_AT_MIN = 20
# Smallest score of a box with full weight. It is the default threshold of a request.
_FULL_WEIGHT = 0.25


@dataclass(slots=True)
class IdentityCheck:
    """Compares an engine's detections, before suppression, with the source model's detections.

    The difference of a box is multiplied by a weight. The weight of a box with a score of at least
    .25, the default threshold of a request, is 1. The weight of any other box is proportional to
    its score. If all scores on an image are lower than .25, the box with the highest score has the
    weight 1.

    Attributes:
        head: head of the model; None if raw outputs are compared.
        detections: number of the source model's detections that were compared.
        box_px: largest weighted difference of a box corner or a keypoint, in pixels of the model's
            input.
        score: largest difference of a score.
    """

    head: Detector | None
    detections: int = 0
    box_px: float = 0.0
    score: float = 0.0

    def each(self, pairs: Iterable[tuple[Sample, Outputs]]) -> Iterator[tuple[Sample, Outputs]]:
        """Compare each sample's outputs of the engine and of the source model, and yield them.

        Raises:
            Disagreement: a box or a keypoint differs by more than 1 pixel of the model's input
                (weighted), or a score by more than 0.01. Also if a column of an output or a mask
                prototype differs by more than 10 %, if a detection is missing or extra, or if the
                IoU of two masks is less than 0.8. If the source model has no detection of any
                score, raw outputs may differ by at most 1 % of their largest value.
        """
        for sample, have in pairs:
            self._check(sample, have)
            yield sample, have

    def _check(self, sample: Sample, have: Outputs) -> None:
        output_error = _output_error(sample, have)
        if self.head is not None:
            best = _candidates(self.head, sample.want, 0.0, _AT_MIN).scores
            conf = min(_CONF, float(best.min(initial=_CONF)))
            # Also decode detections with slightly lower scores. They may be the partners of
            # detections with a score just above `conf`.
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
                f"on {sample.name}, a raw output differs from the source model's output by "
                f"{output_error:.2g} of its largest value; the maximum is {MAX_OUTPUT_ERROR}: try "
                "another --backend"
            )


def _check_columns(name: str, head: Detector, want: Outputs, have: Outputs) -> None:
    """Compare the columns of the outputs.

    Detections are not enough: they do not show errors of classes that no object on the image has.
    """
    found = head.tables(have)
    for what, expected in head.tables(want).items():
        # `_output_error` has checked that both arrays are finite at the same positions.
        off, size = (
            np.abs(values).max(axis=1, where=np.isfinite(expected), initial=0)
            for values in (found[what].astype(np.float32) - expected, expected)
        )
        errors = np.maximum(off - _ROUNDING, 0) / np.maximum(size, _ROUNDING)
        worst = int(errors.argmax())
        # Write `not ... <= ...`, because this condition is also true for NaN.
        if not errors[worst] <= MAX_COLUMN_ERROR:
            raise Disagreement(
                f"on {name}, the best detections agree, but column {worst} of the {what} (0 to "
                f"{len(errors) - 1}) differs by {errors[worst]:.2g} of its largest value; the "
                f"maximum is {MAX_COLUMN_ERROR}: try another --backend"
            )


def _check_masks(name: str, head: Detector, want: Outputs, have: Outputs) -> None:
    """Compare the masks of the best objects of both models. Their order may differ."""
    best, other = (
        head.decode(outputs, 0, PredictOptions(conf=_CONF, iou=1.0, max_det=most))
        for outputs, most in ((want, _AT_MIN), (have, 2 * _AT_MIN))
    )
    if best.masks is None or not len(best) or not len(other):
        return
    least = float(overlap(best, other).max(axis=1).min())
    if not least >= MIN_MASK_IOU:
        raise Disagreement(
            f"on {name}, the best boxes agree, but one mask of the source model has an IoU of "
            f"only {least:.2f} with the most similar mask of the engine; the minimum is "
            f"{MIN_MASK_IOU}: try another --backend"
        )


def compare_detections(
    name: str, want: Detections, have: Detections, conf: float
) -> tuple[float, float]:
    """Return the largest weighted difference of a box corner in pixels, and of a score.

    Each detection with a score of at least `conf` must have a partner. The score of the partner may
    be slightly lower.

    Args:
        name: name of the image, for the error message.
        want: detections of the source model.
        have: detections of the engine.
        conf: smallest score of the detections that are compared.

    Raises:
        Disagreement: a detection has no partner that is close enough.
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
                f"the nearest detection of the {'engine' if one is want else 'source model'} "
                f"differs by {off_px[first]:.2f} px (weighted by score) and by a score of "
                f"{off_score[first]:.3f}"
                if np.isfinite(off_px[first])
                else (
                    f"the {'engine' if one is want else 'source model'} finds no object of that "
                    "class"
                )
            )
            raise Disagreement(
                f"on {name}, the {where} finds class {one.class_ids[first]} at [{box}] with score "
                f"{one.scores[first]:.3f}, and {nearest} ({len(lost)} of {compared} differ; at "
                f"most {MAX_BOX_PX} px and {MAX_SCORE} are allowed): try another --backend"
            )
        box_px = max(box_px, float(off_px.max(initial=0)))
        score = max(score, float(off_score.max(initial=0)))
    return box_px, score


def _candidates(
    head: Detector, outputs: Mapping[str, Array], conf: float, most: int = MAX_DETECTIONS
) -> Detections:
    # Do not suppress any box: a difference of 1e-6 in the scores could decide which of two equal
    # boxes remains. Do not decode masks, because their weights and prototypes are compared
    # directly.
    options = PredictOptions(conf=conf, iou=1.0, max_det=most, mask="none")
    return head.decode(outputs, 0, options)


def _nearest(
    one: Detections, other: Detections, weights: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weighted distance and the score difference to the closest other detection.

    Only detections of the same class are considered. Both results are float32 [n]. If there is no
    other detection of the class, they are infinite.
    """
    off = np.full((2, len(one)), np.inf, np.float32)
    edges, others = _edges(one), _edges(other)
    # Process each class separately to save memory: an untrained model finds thousands of boxes.
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
    """Return the coordinates that are compared, in pixels, float32 [n, columns].

    The coordinates are the corners of the boxes, [n, 4], and x y of keypoints if there are any. For
    rotated boxes, each rectangle is also turned by 45 degrees, and the corners of the upright box
    around the turned rectangle are added. The upright box of the rectangle itself is not enough: it
    is the same for an angle and its negative. Unlike w, h and the angle, these coordinates do not
    jump if w and h are swapped or if the angle passes the end of its range.
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
                f"on {sample.name}, an output has the shape {list(actual.shape)}, but the source "
                f"model's output has {list(expected.shape)}: try another --backend"
            )
    rows = align(sample.want, have, sample.ranked)
    errors = {
        name: output_error({name: array}, rows, _ROUNDING) for name, array in sample.want.items()
    }
    if broken := next((name for name, error in errors.items() if error == NO_NUMBER), None):
        whose = (
            "OpenVINO's output of the source model"
            if sample.replaced
            else "the source model's output"
        )
        raise Disagreement(
            f"on {sample.name}, output {broken} and {whose} are not NaN or infinite in the same "
            "places: try another --backend"
        )
    return max(errors.values(), default=0.0)
