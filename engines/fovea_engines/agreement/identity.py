"""Whether an engine of full precision computes just what its source model does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.agreement.samples import Outputs, Sample
from fovea_engines.backends.base import Array
from fovea_engines.detections import Detections
from fovea_engines.heads.base import Head
from fovea_engines.options import MAX_DETECTIONS, PredictOptions
from fovea_preprocess.errors import Disagreement

MAX_BOX_PX = 1.0
MAX_SCORE = 0.01
# Of a raw output, over its largest value; decides where there are no detections to compare.
MAX_OUTPUT_ERROR = 0.01

# Compared is what scores over this, and on a picture without much to find the best few.
_CONF = 0.05
_AT_LEAST = 20


class IdentityCheck:
    """Compares pictures that pass through it, before suppression.

    Attributes:
        detections: of the source model that were compared.
        box_px: largest difference of a box corner, pixels of the model's input.
        score: largest difference of a score.
    """

    def __init__(self, head: Head | None) -> None:
        self._head = head
        self.detections = 0
        self.box_px = 0.0
        self.score = 0.0

    def each(self, pairs: Iterable[tuple[Sample, Outputs]]) -> Iterator[tuple[Sample, Outputs]]:
        """Pass on samples with the engine's answers.

        Raises:
            Disagreement: a box is off by more than 1 px of the model's input, a score by more
                than 0.01, a detection is missing or extra; or, where neither model finds
                anything, a raw output is off by more than 1 % of its largest value.
        """
        for sample, have in pairs:
            self._check(sample, have)
            yield sample, have

    def _check(self, sample: Sample, have: Outputs) -> None:
        output_error = _output_error(sample.name, sample.want, have)
        if self._head is not None:
            conf = _threshold(self._head, sample.want)
            want = _candidates(self._head, sample.want, conf)
            if len(want):
                found = _candidates(self._head, have, conf)
                box_px, score = compare_detections(sample.name, want, found, conf)
                self.detections += len(want)
                self.box_px, self.score = max(self.box_px, box_px), max(self.score, score)
                return
        if not output_error <= MAX_OUTPUT_ERROR:
            raise Disagreement(
                f"on {sample.name} a raw output is {output_error:.2g} of its largest value off "
                f"(at most {MAX_OUTPUT_ERROR} is allowed): try another --backend"
            )


def compare_detections(
    name: str, want: Detections, have: Detections, conf: float
) -> tuple[float, float]:
    """The largest differences of a box corner, pixels, and of a score, between matched detections.

    Args:
        name: of the picture, for the error.
        want: of the source model.
        have: of the engine.
        conf: threshold of both.

    Raises:
        Disagreement: see `IdentityCheck.each`. Detections at the border of the threshold may be
            missing or extra.
    """
    box_px = score = 0.0
    border = conf + min(MAX_SCORE, conf / 5)
    for one, other, where in ((want, have, "source model"), (have, want, "engine")):
        off_px, off_score = _nearest(one, other)
        close = (off_px <= MAX_BOX_PX) & (off_score <= MAX_SCORE)
        lost = np.flatnonzero(~close & (one.scores > border))
        if len(lost):
            first = lost[0]
            box = " ".join(f"{corner:.1f}" for corner in one.boxes[first])
            nearest = (
                f"the nearest of the other is {off_px[first]:.2f} px and {off_score[first]:.3f} off"
                if np.isfinite(off_px[first])
                else "the other has none of that class"
            )
            raise Disagreement(
                f"on {name} the {where} finds class {one.class_ids[first]} at [{box}] with score "
                f"{one.scores[first]:.3f}, and {nearest} ({len(lost)} of {len(one)} differ; at "
                f"most {MAX_BOX_PX} px and {MAX_SCORE} are allowed): try another --backend"
            )
        box_px = max(box_px, float(off_px[close].max(initial=0)))
        score = max(score, float(off_score[close].max(initial=0)))
    return box_px, score


def _threshold(head: Head, outputs: Mapping[str, Array]) -> float:
    best = _candidates(head, outputs, 0.0, _AT_LEAST).scores
    return min(_CONF, float(best.min(initial=_CONF)))


def _candidates(
    head: Head, outputs: Mapping[str, Array], conf: float, most: int = MAX_DETECTIONS
) -> Detections:
    # Nothing is suppressed: a difference of 1e-6 would decide which of two equal boxes is left.
    return head.decode(outputs, 0, PredictOptions(conf=conf, iou=1.0, max_det=most))


def _nearest(one: Detections, other: Detections) -> tuple[NDArray[Any], NDArray[Any]]:
    """Per detection of `one`, how far the closest of its class in `other` is; inf for none."""
    if not len(other):
        return np.full(len(one), np.inf), np.full(len(one), np.inf)
    off_px = np.zeros((len(one), len(other)), np.float32)
    for a, b in zip(one.boxes.T, other.boxes.T, strict=True):
        np.maximum(off_px, np.abs(a[:, None] - b), out=off_px)
    off_px[one.class_ids[:, None] != other.class_ids] = np.inf
    off_score = np.abs(one.scores[:, None] - other.scores)
    best = np.argmin(np.maximum(off_px / MAX_BOX_PX, off_score / MAX_SCORE), axis=1)[:, None]
    return np.take_along_axis(off_px, best, 1)[:, 0], np.take_along_axis(off_score, best, 1)[:, 0]


def _output_error(name: str, want: Outputs, have: Outputs) -> float:
    errors = [0.0]
    for output, expected in want.items():
        actual = have[output]
        if expected.shape != actual.shape:
            raise Disagreement(
                f"on {name} an output is {list(actual.shape)} where the source model has "
                f"{list(expected.shape)}: try another --backend"
            )
        same = (expected == actual) | ((expected != expected) & (actual != actual))
        off = np.abs(expected.astype(np.float64) - actual)[~same]
        if not np.isfinite(off).all():
            raise Disagreement(
                f"on {name} an output is not finite where the other model's is: try another "
                "--backend"
            )
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-6)
        errors.append(float(off.max(initial=0)) / float(largest))
    return max(errors)
