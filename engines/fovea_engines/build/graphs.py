"""Makes the graphs of a build in its precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.build.precision.encoding import Encoding
from fovea_engines.build.precision.half import to_half
from fovea_engines.build.precision.recode import quantised_share, recode
from fovea_engines.build.precision.validator import validate
from fovea_engines.build.prepare import PreparedModel, check_float32
from fovea_engines.build.quantisation import Quantisation, plan_quantisation
from fovea_engines.build.search import int8_graph
from fovea_engines.progress import Progress
from fovea_engines.repository.card import Precision
from fovea_engines.repository.writing import write_file
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """One model in one precision, for each kind of runtime.

    Attributes:
        precision: of both graphs.
        served: for the plan's backend.
        tensorrt: for TensorRT, with signed INT8 and FP16 elsewhere; None unless a file was asked
            for.
        quantisation: record of the quantisation; None for a model that was not quantised here.
    """

    precision: Precision
    served: onnx.ModelProto
    tensorrt: onnx.ModelProto | None
    quantisation: Quantisation | None = None


def make_graphs(
    plan: BuildPlan, prepared: PreparedModel, truth: LabelledEvaluation | None, progress: Progress
) -> Graphs:
    """Write the precision of a plan into a model.

    Args:
        plan: the plan of the build.
        prepared: its source model.
        truth: labelled images that INT8 must satisfy beside the agreement with the source.
        progress: reports each phase.

    Raises:
        InvalidOption: the calibration does not fit.
        UnsupportedModel: the model cannot be converted to that precision.
    """
    graph = prepared.graph
    if prepared.quantised:
        return _as_exported(plan, graph, progress)
    if plan.precision == "fp32":
        return Graphs("fp32", graph, None if plan.tensorrt is None else graph)
    if plan.precision == "fp16":
        check_float32(prepared, "fp16")
        half = to_half(graph)
        return Graphs("fp16", half, None if plan.tensorrt is None else half)
    quantisation = plan_quantisation(plan, prepared, truth, progress)
    ranges, kept = quantisation.ranges, quantisation.kept_float
    return _int8(plan, lambda encoding: int8_graph(graph, ranges, encoding, kept), quantisation)


def _as_exported(plan: BuildPlan, graph: onnx.ModelProto, progress: Progress) -> Graphs:
    """Keep the scales of a model that was quantised in training."""
    if plan.precision == "fp16":
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

    return _int8(plan, encode)


def _int8(
    plan: BuildPlan,
    encode: Callable[[Encoding], onnx.ModelProto],
    quantisation: Quantisation | None = None,
) -> Graphs:
    """Make the encodings that a plan needs."""
    made = {encoding: encode(encoding) for encoding in plan.encodings}
    if Encoding.SIGNED in made:
        validate(made[Encoding.SIGNED])
    served = made[plan.encodings[0]]
    tensorrt = None if plan.tensorrt is None else made[Encoding.SIGNED]
    return Graphs("int8", served, tensorrt, quantisation)


def save(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph to a file atomically."""
    new = path.with_name(f".{path.name}.new")
    try:
        write_file(new, graph.SerializeToString())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
