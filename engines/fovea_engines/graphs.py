"""The graphs that a build makes of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_engines.card import Precision
from fovea_engines.plan import BuildPlan
from fovea_engines.precision.encoding import Encoding
from fovea_engines.precision.half import to_half
from fovea_engines.precision.qdq import quantise
from fovea_engines.precision.recode import quantised_share, recode
from fovea_engines.precision.validator import validate
from fovea_engines.prepare import PreparedModel
from fovea_engines.progress import Progress
from fovea_engines.quantisation import Quantisation, plan_quantisation
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True, eq=False)
class Graphs:
    """One model in one precision, as each kind of runtime takes it.

    Attributes:
        precision: of both.
        served: for the CPU backends.
        tensorrt: for TensorRT: INT8 is signed, and what is not INT8 is FP16.
        quantisation: how it came to INT8; None when it did not, or came so.
    """

    precision: Precision
    served: onnx.ModelProto
    tensorrt: onnx.ModelProto
    quantisation: Quantisation | None = None


def make_graphs(plan: BuildPlan, prepared: PreparedModel, progress: Progress) -> Graphs:
    """Write the precision of a plan into a model.

    Raises:
        InvalidOption: the calibration does not fit.
        UnsupportedModel: the model cannot be had in that precision.
    """
    graph = prepared.graph
    if prepared.quantised:
        return _as_exported(plan, graph, progress)
    if plan.precision == "fp32":
        return Graphs("fp32", graph, graph)
    if any(spec.dtype == "float16" for spec in (*prepared.inputs, *prepared.outputs)):
        raise UnsupportedModel(
            f"the model is float16 already, and {plan.precision} is made from float32: export it "
            "without half, or build with --precision fp32, which keeps it as it is"
        )
    if plan.precision == "fp16":
        half = to_half(graph)
        return Graphs("fp16", half, half)
    quantisation = plan_quantisation(plan, prepared, progress)
    unsigned, signed = (
        quantise(graph, quantisation.ranges, encoding, quantisation.kept_float)
        for encoding in (Encoding.UNSIGNED, Encoding.SIGNED)
    )
    return Graphs("int8", unsigned, to_half(signed), quantisation)


def _as_exported(plan: BuildPlan, graph: onnx.ModelProto, progress: Progress) -> Graphs:
    """A model that was quantised in training keeps its own scales."""
    if plan.precision == "fp16":
        raise UnsupportedModel(
            "the model was quantised by its exporter: build it with --precision int8, which keeps "
            "its own scales, or export it without"
        )
    done, layers = quantised_share(graph)
    progress.note(
        f"quantised by its exporter and built as it is: {done} of {layers} layers are INT8"
        + ("" if done == layers else ", the others stay float")
    )
    validate(recode(graph, Encoding.SIGNED))
    return Graphs("int8", recode(graph, Encoding.UNSIGNED), to_half(recode(graph, Encoding.SIGNED)))


def save_for_tensorrt(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph that TensorRT takes.

    Raises:
        UnsupportedModel: it would refuse it, or compute something else.
    """
    validate(graph)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.SerializeToString())
