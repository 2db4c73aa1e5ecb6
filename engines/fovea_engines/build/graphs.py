"""Creates the graphs of a build: converts their precision, and fuses preprocessing and NMS."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.int8 import Int8
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel, check_float32
from fovea_engines.heads.nms_tail import add_nms_tail
from fovea_engines.onnx_graph.image_front import add_image_front
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.quantisation import to_int8
from fovea_engines.repository.card import Precision
from fovea_engines.repository.files import write_file
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """The graphs of one model in one precision.

    Attributes:
        precision: precision of the graphs.
        served: graph that the plan's backend compiles.
        exported: graph for the file of the option --tensorrt; None if the plan has no such file.
        int8: quantisation of the model; None if the precision is not INT8.
    """

    precision: Precision
    served: onnx.ModelProto
    exported: onnx.ModelProto | None
    int8: Int8 | None = None


def make_graphs(
    plan: BuildPlan, prepared: PreparedModel, truth: LabelledEvaluation | None, progress: Progress
) -> Graphs:
    """Convert a model to the precision of a plan.

    `truth` is the evaluation on labelled images, or None. If there are labelled images, the search
    for an INT8 model looks at its accuracy on them, and not only at its agreement with the source.
    """
    graph = prepared.graph
    if plan.precision == "int8" or prepared.quantised:
        int8 = to_int8(plan, prepared, truth, progress)
        made = {encoding: int8.encode(encoding) for encoding in plan.encodings}
        exported = None if plan.tensorrt is None else made[Encoding.SIGNED]
        return Graphs("int8", made[plan.encodings[0]], exported, int8)
    if plan.precision != "fp32":
        check_float32(prepared, plan.precision)
    if plan.precision == "fp16":
        graph = to_half(graph)
    return Graphs(plan.precision, graph, None if plan.tensorrt is None else graph)


def save(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph to an ONNX file atomically."""
    new = path.with_name(f".{path.name}.new")
    try:
        write_file(new, graph.SerializeToString())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def fuse(
    plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto, progress: Progress
) -> PreparedModel:
    """Add image preprocessing and NMS to a graph if the plan or its backend requires them.

    The model may not support a part that only the backend requires by default. Then this part is
    left out, and `progress` receives a note.

    Raises:
        UnsupportedModel: the model does not support a part that the plan requires.
    """
    if plan.rect:
        return replace(prepared, graph=graph)
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
            progress.note(f"NMS runs on the CPU: {error}")
        if plan.nms_tail and head is prepared.head:
            progress.note(f"--nms-tail has no effect: the family {head.family} needs no NMS")
        if head.skeleton != prepared.head.skeleton:
            progress.note("--nms-tail returns only boxes: leave it out to get the landmarks")
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
