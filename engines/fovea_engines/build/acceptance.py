"""Measures a built engine, and decides if it is good enough to be published."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.assemble import candidate, reference
from fovea_engines.build.graphs import Graphs
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.edit.any_size import any_size
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.identity import IdentityCheck
from fovea_engines.evaluation.agreement.matching import CONF, MARGIN
from fovea_engines.evaluation.agreement.measure import (
    NO_NUMBER,
    difference,
    finite,
    measure,
    measure_detections,
)
from fovea_engines.evaluation.reference import answers, read_samples
from fovea_engines.evaluation.samples import sample_images
from fovea_engines.heads.base import Detector
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import pin_inputs
from fovea_engines.onnx_graph.wiring import RANKING, outputs_after
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import check_overflow, round_to_half, to_half
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.repository.card import EngineCard, Precision
from fovea_engines.repository.figures import SHIPPED, Agreement
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import Disagreement, NotFinite, UnsupportedModel
from fovea_preprocess.letterbox import least_size
from fovea_preprocess.text import counted

AGREEMENT_IMAGES = 64
# The limit for bf16 is far below usual values: on 64 photographs, the agreement of bfloat16,
# emulated with ONNX Runtime, is 0.970 for yolox_nano and 0.990 for yolov8n.
MIN_QUALITY: Mapping[Precision, float] = {"fp16": 0.98, "bf16": 0.9, "int8": 0.8}
"""Precision -> smallest accepted agreement with the source (0 to 1) of an engine without labels.

An INT8 classifier must also return the source's best class for this fraction of the images. An FP32
engine has no limit here, because its results must be identical to the source's results.
"""

# For engines that accept several input sizes: number of sizes to compare besides the largest size,
# and number of images to compare at each of these sizes.
_MAX_SIZES, _IMAGES_OF_A_SIZE = 4, 8
_LONG = 1000  # aspect ratio of an image that gives the longest input shape
# Smallest plausible accuracy of the source model (0 to 1). A lower accuracy means that the labels
# belong to other images or other classes.
_FOREIGN = 0.01
# Largest accepted loss of agreement (0 to 1) by fused preprocessing and NMS. Rounding in the fused
# preprocessing may change values of an INT8 engine by one step. An incorrect NMS loses much more.
_MAX_LOST = 0.02


def measure_engine(
    plan: BuildPlan,
    prepared: PreparedModel,
    graphs: Graphs,
    fused: PreparedModel,
    engine: Engine,
    truth: LabelledEvaluation | None,
    progress: Progress,
) -> EngineCard:
    """Measure an engine, and return its card with all figures.

    Args:
        plan: options of the build.
        prepared: prepared source model.
        graphs: graphs of the model in the precision of the build.
        fused: model from which the engine was compiled: `graphs.served`, with fused preprocessing
            and NMS if the plan requires them.
        engine: engine to measure.
        truth: evaluation on labelled images. If it is None, only the agreement with the source is
            measured.
        progress: object that receives the phases and notes.

    Raises:
        Disagreement: the results of an FP32 engine differ from its source's, fused preprocessing or
            NMS changes the results, or float16 overflows.
        UnsupportedModel: the source model itself computes NaN or infinite values.
    """
    if prepared.unproven:
        progress.note(
            f"unproven: only TensorRT computes {', '.join(prepared.unproven)}, so the build "
            "cannot compare the engine with the source model"
        )
        measured = {} if truth is None else {"fp32": truth.measure_engine("fp32", engine)}
        return replace(engine.card, accuracy=measured)
    if plan.check_images is None and graphs.precision != "fp32":
        progress.note(f"measured on the {SHIPPED}: give your own images with --images")
    with progress.phase("agreement"):
        # In a graph with signed INT8, the layers that are not quantised compute in FP16.
        signed = graphs.precision == "int8" and plan.encodings[0] is Encoding.SIGNED
        if graphs.precision == "fp16" or signed:
            check_overflow(graphs.served, prepared.preprocess, plan.check_images)
        agreement = _measure_agreement(plan, prepared, graphs, fused, engine)
        sizes = _measure_sizes(plan, prepared, engine) if plan.rect else {}
    if agreement.replaced:
        progress.note(agreement.replaced_text)
    card = replace(engine.card, agreement=agreement, sizes=sizes)
    if fused.preprocess != prepared.preprocess:
        card = replace(card, source_preprocess=prepared.preprocess)
    if graphs.int8 is not None:
        card = replace(card, calibration=graphs.int8.calibration)
    others = {}
    if truth is not None and graphs.precision == "int8" and not prepared.quantised:
        with suppress(UnsupportedModel):  # the report then omits the column for FP16
            others["fp16"] = round_to_half(to_half(prepared.graph))
    if (exported := graphs.exported) is not None:
        others[_exported_name(card)] = round_to_half(exported)
        with progress.phase("tensorrt"):
            check_overflow(exported, prepared.preprocess, plan.check_images)
            with candidate(plan, prepared, exported, graphs.precision, Encoding.SIGNED) as other:
                ranked, source = outputs_after(exported, RANKING), prepared.choose_reference(plan)
                found = check_agreement(other, source, plan.check_images, ranked)
        card = replace(card, tensorrt=found)
    if truth is None:
        return card
    accuracy = {} if graphs.precision == "fp32" else {"fp32": truth.source}
    accuracy |= _measure_graphs(truth, others, progress)
    return replace(card, accuracy=accuracy | _measure_engine(truth, card, engine))


def _measure_engine(
    truth: LabelledEvaluation, card: EngineCard, engine: Engine
) -> dict[str, AnyAccuracy]:
    """Return the accuracy of the engine, and of its largest size if it accepts several sizes."""
    found: dict[str, AnyAccuracy] = {card.precision: truth.measure_engine(card.precision, engine)}
    if engine.largest is not engine:
        name = _square_name(card)
        found[name] = truth.measure_engine(name, engine.largest)
    return found


def _measure_graphs(
    truth: LabelledEvaluation, graphs: Mapping[str, onnx.ModelProto], progress: Progress
) -> dict[str, AnyAccuracy]:
    """Return the accuracy of further graphs.

    The FP16 graph is only for comparison, so it is left out if it overflows.
    """
    found = {}
    for name, graph in graphs.items():
        try:
            found[name] = truth.measure_graph(name, graph)
        except NotFinite as error:
            if name != "fp16":
                raise
            progress.note(f"fp16 is not measured for comparison: {error}")
    return found


def _measure_agreement(
    plan: BuildPlan,
    prepared: PreparedModel,
    graphs: Graphs,
    fused: PreparedModel,
    engine: Engine,
) -> Agreement:
    """Measure the agreement with the source.

    If preprocessing or NMS is fused, first check that this changes no results.
    """
    ranked, source = outputs_after(prepared.graph, RANKING), prepared.choose_reference(plan)
    if (fused.inputs, fused.outputs) == (prepared.inputs, prepared.outputs):
        return check_agreement(engine.largest, source, plan.check_images, ranked)
    precision, encoding = graphs.precision, plan.encodings[0]
    with ExitStack() as opened:
        core = opened.enter_context(candidate(plan, prepared, graphs.served, precision, encoding))
        whole = engine
        if plan.emulates(encoding):
            whole = opened.enter_context(candidate(plan, fused, fused.graph, precision, encoding))
        check_fused(core, whole, plan.check_images)
        agreement = check_agreement(core, source, plan.check_images, ranked)
        measurable = isinstance(engine.head, Detector) and engine.card.judge is None
        if whole is engine or not measurable:
            return agreement
        # The candidate above ran on ONNX Runtime. But the engine itself can run on this machine, so
        # use the figures of its own detections.
        whole_source = opened.enter_context(reference(plan, prepared, prepared.graph, "fp32"))
        found = compare_engines(whole_source, engine, plan.check_images)
        return found if found.detections else agreement


def _measure_sizes(
    plan: BuildPlan, prepared: PreparedModel, engine: Engine
) -> dict[str, Agreement]:
    """Measure the agreement with the source at several input sizes.

    The sizes are the most frequent input sizes for the check images, the widest size and the
    highest size. The source is converted, so that it accepts these sizes.
    """
    spec = engine.card.preprocess
    assert spec is not None, "the model takes images"
    seen = Counter(
        least_size(spec, pixels.shape[1], pixels.shape[0])
        for _, pixels in sample_images(plan.check_images, AGREEMENT_IMAGES)
    )
    extremes = least_size(spec, 1, _LONG), least_size(spec, _LONG, 1)
    sizes = dict.fromkeys([*(size for size, _ in seen.most_common(_MAX_SIZES)), *extremes])
    sizes.pop((spec.height, spec.width), None)
    source = load(plan.source).proto if prepared.source is None else deepcopy(prepared.source)
    pin_inputs(source, plan.size)
    reference, ranked = any_size(source).dynamic(), outputs_after(prepared.graph, RANKING)
    return {
        f"{size[0]}x{size[1]}": check_agreement(
            engine.at(size), reference, plan.check_images, ranked, _IMAGES_OF_A_SIZE
        )
        for size in sizes
    }


def check_agreement(
    engine: Engine,
    source: Path | onnx.ModelProto,
    images: Path | None = None,
    ranked: Set[str] = frozenset(),
    most: int = AGREEMENT_IMAGES,
) -> Agreement:
    """Compare an engine with its source model. The source model runs unchanged.

    Args:
        engine: engine to compare.
        source: source model, as a file or a graph.
        images: directory of images; None means the images that ship with Fovea.
        ranked: names of outputs whose rows may be in a different order in the engine.
        most: largest number of images to compare.

    Raises:
        Disagreement: the results of an FP32 engine differ from its source's results.
    """
    card = engine.card
    spec = card.preprocess or default_preprocess(None, card.inputs, card.metadata)
    outputs = [output.name for output in card.outputs]
    samples = read_samples(source, spec, outputs, images, most, ranked, head=engine.head)
    pairs = answers(engine, samples)
    if card.precision != "fp32":
        return replace(measure(engine.head, pairs), images_from=_folder(images))
    check = IdentityCheck(engine.head if isinstance(engine.head, Detector) else None)
    found = measure(engine.head, check.each(pairs))
    return replace(
        found,
        images_from=_folder(images),
        detections=check.detections,
        box_px=check.box_px,
        score=found.score if check.head is None else check.score,
    )


def compare_engines(one: Engine, other: Engine, images: Path | None = None) -> Agreement:
    """Compare the detections of two engines. The forms of their raw outputs may differ.

    The detections of the first engine count as the correct ones.
    """
    options = PredictOptions(conf=CONF - MARGIN)
    found = measure_detections(
        (name, one.detect(pixels, options), other.detect(pixels, options))
        for name, pixels in sample_images(images, AGREEMENT_IMAGES)
    )
    return replace(found, images_from=_folder(images))


def check_fused(core: Engine, fused: Engine, images: Path | None = None) -> None:
    """Check that fused preprocessing and NMS do not change an engine's results.

    `core` is the engine without the fused parts, and `fused` is the engine with them.

    Raises:
        Disagreement: the agreement of the two engines is less than 98 %.
    """
    if not isinstance(core.head, Detector):
        lost = _outputs_lost(core, fused, images)
    else:
        lost = 1 - compare_engines(core, fused, images).quality
    # The comparison with "not" also rejects NaN.
    if not lost <= _MAX_LOST:
        raise Disagreement(
            f"with preprocessing and NMS in the graph, {lost:.1%} of the detections differ: build "
            "with --no-image-front and --no-nms-tail, which run both on the CPU"
        )


def _outputs_lost(core: Engine, fused: Engine, images: Path | None) -> float:
    """Return the largest relative error of an output.

    The relative error is the sum of absolute differences, divided by the sum of absolute values.
    """
    lost: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    for _, pixels in sample_images(images, AGREEMENT_IMAGES):
        want, have = (one.outputs_of(pixels) for one in (core, fused))
        for name, array in want.items():
            lost[name] += float(np.abs(difference(array, have[name])).sum())
            total[name] += float(np.abs(finite(array)).sum())
    # Unlike Python's `max`, np.max returns NaN if a value is NaN.
    return float(np.max([lost[name] / (total[name] or 1.0) for name in total], initial=0.0))


def rejection(card: EngineCard, max_drop: float) -> str | None:
    """Return the reason why an engine must not be published, or None if it may be published.

    If there are labelled images, the accuracy decides; otherwise the agreement with the source
    decides. This is also the rule for the additional graph for TensorRT. If the engine accepts
    several sizes, the agreement must also be high enough at each measured size.
    """
    reason = _figure_rejection(card, card.precision, card.agreement, max_drop)
    for size, found in card.sizes.items():
        reason = reason or _figure_rejection(card, f"{card.precision} at {size}", found, max_drop)
    if reason is None and (square := card.accuracy.get(_square_name(card))) is not None:
        metric, before, after = square.metric, square.figure, card.accuracy[card.precision].figure
        if not before - after <= max_drop:
            reason = (
                f"{metric} falls from {before:.3f} at one size to {after:.3f} with --rect; the "
                f"drop of {before - after:.3f} exceeds --max-drop {max_drop:g}: leave --rect out"
            )
    if reason is None and card.tensorrt is not None:
        reason = _figure_rejection(card, _exported_name(card), card.tensorrt, max_drop)
    return reason


def _figure_rejection(
    card: EngineCard, name: str, found: Agreement | None, max_drop: float
) -> str | None:
    what = name.replace(card.precision, card.precision.upper())
    if found is not None and found.output_error >= NO_NUMBER:
        return (
            f"an output of the {what} engine is NaN or infinite, or has another shape than the "
            "source model's"
        )
    if name in card.accuracy:
        return _accuracy_rejection(card, name, what, max_drop)
    if found is None:
        return None
    nothing = not found.detections and found.same_top is None and found.shared is None
    if card.precision == "int8" and card.family is not None and nothing:
        return (
            f"the source model detects nothing on the {counted(found.images, 'image')} of the "
            "INT8 check (--images, or --calibration): give images that show its classes, or check "
            "--preprocess"
        )
    least = MIN_QUALITY.get(card.precision, 0.0)
    # The best class is not checked for FP16. An FP16 build may have only three check images, and
    # one changed class in three images has no meaning.
    if card.precision == "int8" and found.same_top is not None and not found.same_top >= least:
        return (
            f"{what} agrees with the source model's best class on {found.same_top:.0%} of the "
            f"images; the minimum is {least:.0%}"
        )
    if found.quality >= least:
        return None
    changed = "its outputs differ"
    if found.detections:
        whole = counted(found.detections, "detection")
        changed = f"of {whole}, it misses {found.missed} and adds {found.extra}"
    return (
        f"{what} has an agreement of {found.quality:.3f} with the source model; the minimum is "
        f"{least:g} ({changed})"
    )


def _accuracy_rejection(card: EngineCard, name: str, what: str, max_drop: float) -> str | None:
    metric = card.accuracy[name].metric
    before, after = card.accuracy["fp32"].figure, card.accuracy[name].figure
    # The comparison with "not" also rejects NaN.
    if not before >= _FOREIGN:
        return (
            f"the source model itself has {metric} {before:.3f} on --data, so no drop can be "
            "measured: check that the labels belong to these images and to this model"
        )
    if before - after <= max_drop:
        return None
    return (
        f"{metric} falls from {before:.3f} to {after:.3f} in {what}; the drop of "
        f"{before - after:.3f} exceeds --max-drop {max_drop:g}"
    )


def _square_name(card: EngineCard) -> str:
    return f"{card.precision} at one size"


def _exported_name(card: EngineCard) -> str:
    return f"{card.precision} for TensorRT"


def _folder(images: Path | None) -> str:
    return SHIPPED if images is None else images.resolve().name
