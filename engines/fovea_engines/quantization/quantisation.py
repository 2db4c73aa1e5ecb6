"""Converts the model of a build to INT8, and checks the graph against TensorRT's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.int8 import Encode, Int8, Judge, Sensitivity, Truth
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.build.prepare import PreparedModel, check_float32
from fovea_engines.onnx_graph.wiring import Wiring, attribute
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import find_ranges
from fovea_engines.quantization.qdq import quantisable
from fovea_engines.quantization.ranges import RANGES_FILE, Ranges
from fovea_engines.quantization.recode import keep_exported
from fovea_engines.quantization.search import Int8Candidates, SensitivitySearch, int8_graph, select
from fovea_engines.repository.figures import Calibration
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.text import counted

_ACTIVATIONS = {
    *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Elu", "Mish", "Softplus", "Gelu"),
}
_MAX_FAULTS = 3

# Number of blocks of the ranking that a build reports. The card has all blocks.
_SHOWN = 8


def validate(model: onnx.ModelProto) -> None:
    """Check that TensorRT accepts an INT8 graph, and interprets it correctly.

    The rules are TensorRT's rules for explicit quantisation. For example, TensorRT reads uint8 as
    int8 and clips the values, so uint8 is rejected.

    Raises:
        UnsupportedModel: the graph breaks a rule. The message lists up to three faults.
    """
    faults = list(_faults(model))
    if faults:
        more = f" ({len(faults)} faults in all)" if len(faults) > _MAX_FAULTS else ""
        raise UnsupportedModel(
            "TensorRT does not support this quantised graph: "
            f"{'; '.join(faults[:_MAX_FAULTS])}{more}"
        )


def _faults(model: onnx.ModelProto) -> Iterator[str]:
    wiring = Wiring(model)
    for node in wiring.nodes:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            yield from _scale_faults(wiring, node)
            yield from _integer_faults(wiring, node)
        if node.op_type == "QuantizeLinear":
            yield from _place_faults(wiring, node)


def _scale_faults(wiring: Wiring, node: onnx.NodeProto) -> Iterator[str]:
    scale = wiring.constants.get(node.input[1])
    if scale is None:
        yield f"{node.name} has a scale that is computed; it must be a constant"
        return
    values = to_array(scale).astype(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        yield f"{node.name} has a scale that is not a positive number"
    if values.size > 1 and not _is_of_weights(wiring, node):
        yield f"{node.name} quantises an activation per channel; only weights may be"
    elif values.size > 1 and (axis := attribute(node, "axis", 1)) != 0:
        takers = wiring.consumers[node.output[0]]
        if any(taker.op_type == "Conv" for taker in takers):
            yield f"{node.name} has a scale per channel along axis {axis}, not 0"


def _integer_faults(wiring: Wiring, node: onnx.NodeProto) -> Iterator[str]:
    integers = wiring.constants.get(node.input[0])
    if node.op_type == "DequantizeLinear" and integers is not None:
        kind = to_array(integers).dtype
        if kind != np.int8:
            yield (
                f"{node.name} dequantises {kind}; only int8 is supported, and biases must stay "
                "float"
            )
    if len(node.input) < 3 or not node.input[2]:
        if node.op_type == "QuantizeLinear":
            yield f"{node.name} has no zero point, which makes it uint8"
        return
    zero = wiring.constants.get(node.input[2])
    if zero is None:
        yield f"{node.name} has a zero point that is computed; it must be a constant"
    elif to_array(zero).dtype != np.int8:
        yield (
            f"{node.name} has the type {to_array(zero).dtype}, which TensorRT would read as int8 "
            "and clip"
        )
    elif to_array(zero).any():
        yield f"{node.name} has a zero point other than 0"


def _place_faults(wiring: Wiring, node: onnx.NodeProto) -> Iterator[str]:
    maker = wiring.producer.get(node.input[0])
    if maker is None or maker.op_type != "Conv":
        return
    takers = [
        t for real in wiring.consumers[node.output[0]] for t in wiring.consumers[real.output[0]]
    ]
    if any(taker.op_type in _ACTIVATIONS | {"Mul"} for taker in takers):
        yield (
            f"{node.name} is between {maker.name} and its activation, so TensorRT cannot fuse these"
        )


def _is_of_weights(wiring: Wiring, node: onnx.NodeProto) -> bool:
    if node.input[0] in wiring.constants:
        return True
    maker = wiring.producer.get(node.input[0])
    return maker is not None and not wiring.constants.keys().isdisjoint(maker.input[:1])


@dataclass(frozen=True, slots=True, eq=False)
class Quantisation:
    """The decisions for the conversion of a model to INT8.

    Attributes:
        ranges: ranges of the layers' inputs.
        reused: True if the ranges come from an earlier build.
        layers: names of the layers that can be INT8.
        kept_float: names of the layers that stay float.
        ranking: blocks, the block with the largest gain first; empty if no search was needed.
    """

    ranges: Ranges
    reused: bool
    layers: tuple[str, ...]
    kept_float: tuple[str, ...]
    ranking: tuple[Sensitivity, ...]

    @property
    def card_entry(self) -> Calibration:
        """Return the description of the calibration for the card."""
        origin = self.ranges.origin
        return Calibration(
            method=origin.method,
            images=self.ranges.count,
            images_sha256=origin.images,
            preprocess_sha256=origin.preprocess,
            layers=len(self.layers) - len(self.kept_float),
            kept_float=self.kept_float,
            reused=self.reused,
            remarks=self.ranges.remarks,
            gains={one.block: round(one.gain, 4) for one in self.ranking},
        )


def to_int8(plan: BuildPlan, prepared: PreparedModel, truth: Truth, progress: Progress) -> Int8:
    """Convert a model to INT8 according to a plan.

    If its exporter quantised the model, keep the exporter's scales.
    """
    if prepared.quantised:
        return Int8(_check_encodings(keep_exported(plan, prepared.graph, progress)))
    found = plan_quantisation(plan, prepared, truth, progress)
    encode = partial(int8_graph, prepared.graph, found.ranges, keep_float=found.kept_float)
    files = {RANGES_FILE: found.ranges.encode()}
    return Int8(_check_encodings(encode), found.card_entry, found.ranking, files)


def _check_encodings(encode: Encode) -> Encode:
    """Return a function like `encode` that also checks the graphs for TensorRT."""

    def encode_checked(encoding: Encoding) -> onnx.ModelProto:
        graph = encode(encoding)
        if encoding is Encoding.SIGNED:
            validate(graph)
        return graph

    return encode_checked


def plan_quantisation(
    plan: BuildPlan, prepared: PreparedModel, truth: Truth, progress: Progress
) -> Quantisation:
    """Find the ranges for a model, and choose the layers that stay float.

    Raises:
        InvalidOption: the plan keeps all layers in float, or its calibration does not fit the
            model.
        UnsupportedModel: no layer can be INT8, or the agreement is high enough only if all layers
            stay float.
    """
    layers = quantisable_layers(prepared)
    # Check the patterns before the calibration, which takes minutes.
    chosen = None if plan.keep_float == (AUTO,) else select(plan.keep_float, layers)
    if chosen is not None and len(chosen) == len(layers):
        raise InvalidOption(
            f"--exclude-nodes leaves all {counted(len(layers), 'layer')} in float, so the engine "
            "would be FP32: exclude fewer, or build with --precision fp32"
        )
    ranges, reused = find_ranges(plan, prepared, progress)
    if chosen is not None:
        return Quantisation(ranges, reused, layers, chosen, ())
    kept: tuple[str, ...] = ()
    ranking: tuple[Sensitivity, ...] = ()
    judge = Judge(plan, prepared, truth)
    # The engine's graph and the TensorRT file have the same layers in float. So the layers that one
    # of them needs in float also stay float in the other.
    for encoding in plan.encodings:
        candidates = Int8Candidates(judge, prepared.graph, ranges, encoding)
        found = _search(candidates, layers, kept, encoding, progress)
        if found is not None:
            kept += tuple(layer for one in found.kept for layer in one.layers)
            ranking += found.ranking
    if len(kept) == len(layers):
        raise UnsupportedModel(
            f"INT8 passes the check only if all {counted(len(layers), 'layer')} stay float: build "
            "with --precision fp16 or fp32, or calibrate on more, and more varied, images"
        )
    return Quantisation(ranges, reused, layers, kept, ranking)


def _search(
    candidates: Int8Candidates,
    layers: tuple[str, ...],
    kept: tuple[str, ...],
    encoding: Encoding,
    progress: Progress,
) -> SensitivitySearch | None:
    """Search for further layers to keep in float, in addition to `kept`.

    If no further layers are needed, return None.
    """
    whose = " for TensorRT" if encoding is Encoding.SIGNED else ""
    with progress.phase("sensitivity"):
        base = candidates.score(kept)
        blocks = f"all but {len(kept)} layers" if kept else "every block"
        progress.note(f"{base} with {blocks} in INT8{whose}")
        if base.margin >= 0:
            return None
        left = tuple(layer for layer in layers if layer not in kept)
        found = candidates.search(left, kept, base, progress)
    for one in found.ranking[:_SHOWN]:
        stays = "stays in float" if one in found.kept else "in INT8"
        progress.note(f"  {one.gain:+.3f}  {one.block} {stays}")
    count = f"{len(found.kept)} of {len(found.ranking)} blocks"
    progress.note(f"{found.reached} with {count} in float{whose}")
    return found


def quantisable_layers(prepared: PreparedModel) -> tuple[str, ...]:
    """Return the names of the layers that can be INT8, in the order of the graph.

    Raises:
        UnsupportedModel: no layer can be INT8, the model is not float32, or its exporter has
            quantised it.
    """
    if prepared.quantised:
        raise UnsupportedModel(
            "the model was quantised by its exporter and keeps its own scales: build it unchanged "
            "with --precision int8"
        )
    check_float32(prepared, "int8")
    layers = quantisable(prepared.graph)
    if not layers:
        raise UnsupportedModel(
            "no layer of the model gains from INT8 (except in its head, it has no convolutions or "
            "projections with constant float32 weights): build with --precision fp16"
        )
    return layers
