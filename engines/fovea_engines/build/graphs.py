"""Makes the graphs of a build: in its precision, with image front and NMS tail."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.build.precision.half import to_half
from fovea_engines.build.precision.recode import quantised_share, recode
from fovea_engines.build.precision.validator import validate
from fovea_engines.build.prepare import PreparedModel, check_float32
from fovea_engines.build.quantisation import Quantisation, plan_quantisation
from fovea_engines.build.search import int8_graph
from fovea_engines.graph.any_size import any_size
from fovea_engines.graph.image_front import add_image_front
from fovea_engines.graph.nms_tail import add_nms_tail
from fovea_engines.graph.tensors import graph_inputs, graph_outputs
from fovea_engines.progress import Progress
from fovea_engines.repository.card import Precision
from fovea_engines.repository.files import write_file
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """One model in one precision, in each form that a plan asks for.

    `served` is for the plan's backend, `exported` for its file. `quantisation` is None for a model
    that was not quantised here.
    """

    precision: Precision
    served: onnx.ModelProto
    exported: onnx.ModelProto | None
    quantisation: Quantisation | None = None


def make_graphs(
    plan: BuildPlan, prepared: PreparedModel, truth: LabelledEvaluation | None, progress: Progress
) -> Graphs:
    """Write the precision of a plan into a model.

    INT8 must satisfy the labelled images (`truth`), if any, beside the agreement with the source.
    """
    graph, quantisation = prepared.graph, None
    precision: Precision = "int8" if prepared.quantised else plan.precision
    encode: Callable[[Encoding], onnx.ModelProto]
    if prepared.quantised:
        encode = _as_exported(plan, graph, progress)
    elif precision == "int8":
        quantisation = plan_quantisation(plan, prepared, truth, progress)
        encode = partial(int8_graph, graph, quantisation.ranges, keep_float=quantisation.kept_float)
    else:
        if precision != "fp32":
            check_float32(prepared, precision)
        if precision == "fp16":
            graph = to_half(graph)
        return Graphs(precision, graph, None if plan.tensorrt is None else graph)
    made = {encoding: encode(encoding) for encoding in plan.encodings}
    if Encoding.SIGNED in made:
        validate(made[Encoding.SIGNED])
    exported = None if plan.tensorrt is None else made[Encoding.SIGNED]
    return Graphs("int8", made[plan.encodings[0]], exported, quantisation)


def _as_exported(
    plan: BuildPlan, graph: onnx.ModelProto, progress: Progress
) -> Callable[[Encoding], onnx.ModelProto]:
    """Return the conversion that keeps the scales of a model that was quantised in training."""
    if plan.precision in ("fp16", "bf16"):
        raise UnsupportedModel(
            "the model was quantised by its exporter: build it with --precision int8, which keeps "
            "its own scales, or export it without"
        )
    for option, given in (
        ("--calibration", plan.calibration is not None),
        ("--calibrator", plan.calibrator != "percentile"),
        ("--keep-float", plan.keep_float != (AUTO,)),
    ):
        if given:
            raise InvalidOption(
                f"the model was quantised by its exporter and keeps its own scales, so {option} "
                "has no effect: leave it out (--images takes images to check the engine on)"
            )
    done, layers = quantised_share(graph)
    progress.note(
        f"quantised by its exporter and built as it is: {done} of {layers} layers are INT8"
        + ("" if done == layers else ", the others stay float")
    )

    def encode(encoding: Encoding) -> onnx.ModelProto:
        recoded = recode(graph, encoding)
        return to_half(recoded) if encoding is Encoding.SIGNED else recoded

    return encode


def save(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph to a file atomically."""
    new = path.with_name(f".{path.name}.new")
    try:
        write_file(new, graph.SerializeToString())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def fuse(
    plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto, progress: Progress
) -> PreparedModel:
    """Add what a plan asks for to a graph in its precision: image front and NMS tail, or any size.

    Parts that are only a default of the backend are left out, with a note, where the model does not
    support them; where they were asked for, that is an UnsupportedModel.
    """
    if prepared.step:
        return _with_sizes(prepared, any_size(graph).dynamic())
    fused = deepcopy(graph)
    head, spec = prepared.head, prepared.preprocess
    fuses = plan.runtime.fuses
    boxes_alone = head.task == "detect" and head.skeleton is None
    if plan.nms_tail or (plan.nms_tail is None and fuses and boxes_alone):
        try:
            head = add_nms_tail(fused, head)
        except UnsupportedModel as error:
            if plan.nms_tail:
                raise
            progress.note(f"duplicates are suppressed on the host: {error}")
        if plan.nms_tail and head is prepared.head:
            progress.note(f"--nms-tail adds nothing: {head.family} needs no suppression")
        if head.skeleton != prepared.head.skeleton:
            progress.note("--nms-tail returns boxes alone: leave it out for the landmarks")
    by_default = fuses and (spec is None or spec.resample != "linear-float")
    if plan.image_front or (plan.image_front is None and by_default):
        spec = add_image_front(fused, spec)
    return replace(
        prepared,
        graph=fused,
        inputs=graph_inputs(fused),
        outputs=graph_outputs(fused),
        head=head,
        preprocess=spec,
    )


def _with_sizes(prepared: PreparedModel, graph: onnx.ModelProto) -> PreparedModel:
    return replace(
        prepared,
        graph=graph,
        inputs=graph_inputs(graph),
        outputs=graph_outputs(graph),
        preprocess=replace(prepared.preprocess, step=prepared.step),
    )
