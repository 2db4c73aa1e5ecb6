"""Whether an engine computes what its source model does, when both see the same pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.base import Array
from fovea_engines.card import Agreement
from fovea_engines.detections import Detections
from fovea_engines.engine import Engine
from fovea_engines.heads.base import Head
from fovea_engines.heads.preprocess import default_preprocess
from fovea_engines.options import MAX_DETECTIONS, PredictOptions
from fovea_engines.samples import sample_images
from fovea_preprocess.errors import Disagreement, UnsupportedModel
from fovea_preprocess.preprocessor import Preprocessor

MAX_BOX_PX = 1.0
MAX_SCORE = 0.01
# Of a raw output, over its largest value; decides where there are no detections to compare.
MAX_OUTPUT_ERROR = 0.01

# Compared is what scores over this, and on a picture without much to find the best few.
_CONF = 0.05
_AT_LEAST = 20


def check_agreement(engine: Engine, source: Path, images: Path | None = None) -> Agreement:
    """Compare an engine with its source model, run by plain ONNX Runtime, one row at a time.

    Args:
        engine: as it will be served; runs batches as large as it may.
        source: the ONNX file it was built from.
        images: folder of pictures; None draws some.

    Raises:
        Disagreement: a box is off by more than 1 px of the model's input, a score by more than
            0.01, a detection is missing or extra; or, where neither model finds anything, a raw
            output is off by more than 1 % of its largest value.
        InvalidOption: the folder has no picture.
        UnsupportedModel: ONNX Runtime cannot run the source.
    """
    names, rows = _inputs(engine, images)
    figures = [
        _compare(engine, name, want, have)
        for name, want, have in zip(
            names, _run_source(source, rows), _run_engine(engine, rows), strict=True
        )
    ]
    return Agreement(
        images=len(figures),
        detections=sum(one.detections for one in figures),
        box_px=max(one.box_px for one in figures),
        score=max(one.score for one in figures),
        output_error=max(one.output_error for one in figures),
    )


def _compare(engine: Engine, name: str, want: Sequence[Array], have: Sequence[Array]) -> Agreement:
    """The figures of one picture."""
    output_error = _output_error(name, want, have)
    if engine.head is not None:
        outputs = [spec.name for spec in engine.session.outputs]
        conf = _threshold(engine.head, dict(zip(outputs, want, strict=True)))
        expected, actual = (
            _candidates(engine.head, dict(zip(outputs, arrays, strict=True)), conf)
            for arrays in (want, have)
        )
        if len(expected):
            box_px, score = compare_detections(name, expected, actual, conf)
            return Agreement(1, len(expected), box_px, score, output_error)
    if not output_error <= MAX_OUTPUT_ERROR:
        raise Disagreement(
            f"on {name} a raw output is {output_error:.2g} of its largest value off (at most "
            f"{MAX_OUTPUT_ERROR} is allowed): try another --backend"
        )
    return Agreement(1, 0, 0.0, 0.0, output_error)


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
        Disagreement: see `check_agreement`. Detections at the border of the threshold may be
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


def _output_error(name: str, want: Sequence[Array], have: Sequence[Array]) -> float:
    errors = [0.0]
    for expected, actual in zip(want, have, strict=True):
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


def _inputs(engine: Engine, images: Path | None) -> tuple[list[str], Array]:
    """Names and rows [n, ...] of the samples, as the engine's input has them."""
    card = engine.card
    spec = card.preprocess or default_preprocess(None, card.inputs, card.metadata)
    preprocessor = Preprocessor(spec)
    samples = list(sample_images(images))
    rows = np.empty((len(samples), *spec.row_shape), spec.dtype)
    for row, (_, pixels) in zip(rows, samples, strict=True):
        preprocessor(pixels, row)
    return [name for name, _ in samples], rows


def _run_engine(engine: Engine, rows: Array) -> Iterator[list[Array]]:
    session = engine.session
    for begin in range(0, len(rows), session.max_batch):
        batch = rows[begin : begin + session.max_batch]
        answer = session.infer({session.inputs[0].name: batch})
        for row in range(len(batch)):
            yield [answer[spec.name][row : row + 1] for spec in session.outputs]


def _run_source(source: Path, rows: Array) -> Iterator[list[Array]]:
    # Not through a backend: the judge must not share code with what it judges.
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        [feed] = session.get_inputs()
        for row in range(len(rows)):
            yield session.run(None, {feed.name: rows[row : row + 1]})
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise UnsupportedModel(f"ONNX Runtime cannot run the source model: {error}") from error
