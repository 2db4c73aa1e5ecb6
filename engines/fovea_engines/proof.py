"""Whether a built engine is good enough to be published, and the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_engines.accuracy.dataset import Dataset
from fovea_engines.accuracy.evaluate import evaluate, in_process
from fovea_engines.agreement.identity import IdentityCheck
from fovea_engines.agreement.measure import measure
from fovea_engines.agreement.samples import answers, read_samples
from fovea_engines.assemble import trial
from fovea_engines.card import EngineCard, Precision
from fovea_engines.engine import Engine
from fovea_engines.figures import Accuracy, Agreement
from fovea_engines.heads.preprocess import default_preprocess
from fovea_engines.plan import BuildPlan
from fovea_engines.prepare import PreparedModel
from fovea_engines.progress import Progress
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

AGREEMENT_IMAGES = 64
MIN_QUALITY: Mapping[Precision, float] = {"fp16": 0.98, "int8": 0.8}
"""Agreement under which an engine without labelled pictures is refused. FP32 must be identical."""


def check_agreement(
    engine: Engine, source: Path, images: Path | None = None, most: int = AGREEMENT_IMAGES
) -> Agreement:
    """Compare an engine with its source model, run by plain ONNX Runtime.

    Args:
        engine: as it will be served.
        source: the ONNX file it was built from.
        images: folder of pictures; None draws some.
        most: pictures to take from the folder.

    Raises:
        Disagreement: an engine of full precision does not compute what its source does.
        InvalidOption: the folder has no picture.
        UnsupportedModel: ONNX Runtime cannot run the source.
    """
    card = engine.card
    outputs = [output.name for output in card.outputs]
    samples = read_samples(source, _spec(card), outputs, images, most)
    pairs = answers(engine, samples)
    if card.precision != "fp32":
        return measure(engine.head, pairs)
    check = IdentityCheck(engine.head)
    found = measure(engine.head, check.each(pairs))
    return replace(found, detections=check.detections, box_px=check.box_px, score=check.score)


def check_accuracy(
    plan: BuildPlan,
    prepared: PreparedModel,
    graphs: Mapping[str, onnx.ModelProto],
    engine: Engine,
    dataset: Dataset,
    progress: Progress,
) -> dict[str, Accuracy]:
    """Accuracy on labelled pictures of an engine and, side by side, of other precisions.

    Args:
        plan: of the build.
        prepared: its source.
        graphs: what to measure beside the engine, by name; ONNX Runtime computes it.
        engine: as it will be served.
        dataset: read for this model.
        progress: counts pictures.
    """
    judge = replace(plan, backend="onnxruntime", max_batch=1)
    found = {}
    for name, graph in graphs.items():
        with trial(judge, prepared, graph, "fp32") as other:
            found[name] = evaluate(in_process(other), dataset, progress)
    return found | {engine.card.precision: evaluate(in_process(engine), dataset, progress)}


def objection(card: EngineCard, max_drop: float) -> str | None:
    """Why an engine must not be published, in a sentence; None when it may.

    Labels decide where there are any; else the agreement with the source does.
    """
    precision = card.precision
    if card.accuracy:
        before, after = card.accuracy["fp32"].map50_95, card.accuracy[precision].map50_95
        if before - after <= max_drop:
            return None
        return (
            f"mAP50-95 falls from {before:.3f} to {after:.3f} in {precision.upper()}, by "
            f"{before - after:.3f} where --max-drop allows {max_drop:g}"
        )
    found, least = card.agreement, MIN_QUALITY.get(precision, 0.0)
    if found is None or found.quality >= least:
        return None
    changed = "its outputs differ"
    if found.detections:
        changed = (
            f"of {found.detections} detections it misses {found.missed}, and adds {found.extra}"
        )
    return (
        f"{precision.upper()} agrees {found.quality:.2f} with the source model where {least:g} is "
        f"asked for ({changed})"
    )


def _spec(card: EngineCard) -> PreprocessSpec:
    return card.preprocess or default_preprocess(None, card.inputs, card.metadata)
