"""Decides if a built engine is good enough to be published, by measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.detect.heads.preprocess import default_preprocess
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.identity import IdentityCheck
from fovea_engines.evaluate.agreement.measure import (
    CONF,
    MARGIN,
    NO_NUMBER,
    measure,
    measure_detections,
)
from fovea_engines.evaluate.agreement.samples import answers, read_samples
from fovea_engines.evaluate.samples import sample_images
from fovea_engines.plural import counted
from fovea_engines.repository.card import EngineCard, Precision
from fovea_engines.repository.figures import Accuracy, Agreement
from fovea_engines.repository.wording import SHIPPED
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

AGREEMENT_IMAGES = 64
MIN_QUALITY: Mapping[Precision, float] = {"fp16": 0.98, "int8": 0.8}
"""Agreement, of INT8 classifiers also in the first class, under which an engine without labelled
images is refused. FP32 must be identical."""

# A lower mAP50-95 means that the labels belong to other images or classes.
_FOREIGN = 0.01


def check_agreement(
    engine: Engine, source: Path, images: Path | None = None, most: int = AGREEMENT_IMAGES
) -> Agreement:
    """Compare an engine with its source model, run by plain ONNX Runtime.

    Args:
        engine: as it will be served.
        source: the ONNX file it was built from.
        images: folder of images; None takes those that ship with Fovea.
        most: images to take from the folder.

    Raises:
        Disagreement: an engine of full precision does not compute what its source does.
        InvalidOption: the folder has no image.
        UnsupportedModel: ONNX Runtime cannot run the source.
    """
    card = engine.card
    outputs = [output.name for output in card.outputs]
    samples = read_samples(source, _spec(card), outputs, images, most)
    pairs = answers(engine, samples)
    if card.precision != "fp32":
        return replace(measure(engine.head, pairs), images_from=_folder(images))
    check = IdentityCheck(engine.head)
    found = measure(engine.head, check.each(pairs))
    return replace(
        found,
        images_from=_folder(images),
        detections=check.detections,
        box_px=check.box_px,
        score=check.score,
    )


def check_detections(source: Engine, engine: Engine, images: Path | None = None) -> Agreement:
    """Compare what an engine finds with what its source model does, whatever their outputs.

    Args:
        source: in float32.
        engine: as it will be served.
        images: folder of images; None takes those that ship with Fovea.
    """
    options = PredictOptions(conf=CONF - MARGIN)
    found = measure_detections(
        (name, source.detect(pixels, options), engine.detect(pixels, options))
        for name, pixels in sample_images(images, AGREEMENT_IMAGES)
    )
    return replace(found, images_from=_folder(images))


def check_accuracy(
    truth: LabelledEvaluation, graphs: Mapping[str, onnx.ModelProto], engine: Engine
) -> dict[str, Accuracy]:
    """Measure the accuracy of an engine, its source and other precisions on labelled images.

    Args:
        truth: the labelled images.
        graphs: other graphs to measure, by name.
        engine: as it will be served.
    """
    precision = engine.card.precision
    found = {} if precision == "fp32" else {"fp32": truth.source}
    found |= {name: truth.of_graph(name, graph) for name, graph in graphs.items()}
    return found | {precision: truth.of_engine(precision, engine)}


def for_tensorrt(precision: Precision) -> str:
    """Return the card's name for the accuracy of the file for TensorRT."""
    return f"{precision} for TensorRT"


def objection(card: EngineCard, max_drop: float) -> str | None:
    """Return the reason why an engine must not be published; None when it may.

    Labels decide if there are any; otherwise the agreement with the source does. The same holds for
    the file for TensorRT.
    """
    reason = _objection(card, card.precision, card.agreement, max_drop)
    if reason is None and card.tensorrt is not None:
        reason = _objection(card, for_tensorrt(card.precision), card.tensorrt, max_drop)
    return reason


def _objection(card: EngineCard, name: str, found: Agreement | None, max_drop: float) -> str | None:
    what = name.replace(card.precision, card.precision.upper())
    if found is not None and found.output_error >= NO_NUMBER:
        return (
            f"an output of the {what} engine is no finite number where the source model's is, or "
            "of another shape"
        )
    if name in card.accuracy:
        return _labelled_objection(card, name, what, max_drop)
    if found is None:
        return None
    if card.precision == "int8" and card.family is not None and not found.detections:
        return (
            f"the source model itself finds nothing on the {counted(found.images, 'image')} that "
            "INT8 is judged on (--images, or those of --calibration): they show nothing that it "
            "knows, or it was trained with another preprocessing"
        )
    least = MIN_QUALITY.get(card.precision, 0.0)
    # A class more or less on the three photographs that FP16 may be judged on says nothing.
    if card.precision == "int8" and found.same_top is not None and found.same_top < least:
        return (
            f"{what} puts the source model's first class first on {found.same_top:.0%} of the "
            f"images where {least:.0%} is asked for"
        )
    if found.quality >= least:
        return None
    changed = "its outputs differ"
    if found.detections:
        whole = counted(found.detections, "detection")
        changed = f"of {whole} it misses {found.missed}, and adds {found.extra}"
    return (
        f"{what} agrees {found.quality:.3f} with the source model where {least:g} is asked for "
        f"({changed})"
    )


def _labelled_objection(card: EngineCard, name: str, what: str, max_drop: float) -> str | None:
    before, after = card.accuracy["fp32"].map50_95, card.accuracy[name].map50_95
    if before < _FOREIGN:
        return (
            f"the source model itself has mAP50-95 {before:.3f} on --data, so no drop can be told: "
            "are these the labels of these images?"
        )
    if before - after <= max_drop:
        return None
    return (
        f"mAP50-95 falls from {before:.3f} to {after:.3f} in {what}, by {before - after:.3f} where "
        f"--max-drop allows {max_drop:g}"
    )


def _folder(images: Path | None) -> str:
    return SHIPPED if images is None else images.resolve().name


def _spec(card: EngineCard) -> PreprocessSpec:
    return card.preprocess or default_preprocess(None, card.inputs, card.metadata)
