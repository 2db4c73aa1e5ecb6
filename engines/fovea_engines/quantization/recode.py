"""Converts models that an exporter quantised to the integer encoding that a runtime needs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.numpy_helper import from_array, to_array

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.int8 import Encode
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.onnx_graph.wiring import Wiring, attribute, rebuild
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import MAX_OF_PAIRS, pair_sums
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_KINDS = {Encoding.SIGNED: (np.int8, 0), Encoding.UNSIGNED: (np.uint8, 128)}


def keep_exported(plan: BuildPlan, graph: onnx.ModelProto, progress: Progress) -> Encode:
    """Return a function that converts a model, quantised by its exporter, to an encoding.

    The conversion keeps the exporter's scales.

    Raises:
        UnsupportedModel: the precision of the plan is fp16 or bf16.
        InvalidOption: the plan has an option for INT8 that has no effect for such a model.
    """
    if plan.precision in ("fp16", "bf16"):
        raise UnsupportedModel(
            "the model was quantised by its exporter: build it with --precision int8, which keeps "
            "its own scales, or export it without quantisation"
        )
    for option, given in (
        ("--calibration", plan.calibration is not None),
        ("--calibrator", plan.calibrator != "percentile"),
        ("--exclude-nodes", plan.keep_float != (AUTO,)),
    ):
        if given:
            raise InvalidOption(
                f"the model was quantised by its exporter and keeps its own scales, so {option} "
                "has no effect: leave it out (give images for the accuracy check with --images)"
            )
    done, layers = quantised_share(graph)
    progress.note(
        f"quantised by its exporter and built unchanged: {done} of {layers} layers are INT8"
        + ("" if done == layers else ", the others stay float")
    )

    def encode(encoding: Encoding) -> onnx.ModelProto:
        recoded = recode(graph, encoding)
        return to_half(recoded) if encoding is Encoding.SIGNED else recoded

    return encode


def quantised_share(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the number of convolutions with quantised inputs, and of all convolutions."""
    wiring = Wiring(model)
    layers = wiring.layers()
    makers = (wiring.producer.get(layer.input[0]) for layer in layers)
    done = sum(node is not None and node.op_type == "DequantizeLinear" for node in makers)
    return done, len(layers)


def recode(model: onnx.ModelProto, encoding: Encoding) -> onnx.ModelProto:
    """Return a copy of a quantised model, with its activations in another integer encoding.

    int8 with zero point 0 and uint8 with zero point 128 represent the same values with the same
    steps, so no value is rounded. Activations with other zero points stay unchanged. If this CPU
    needs weights with 7 bits, large weights are halved (see `narrow_weights`).
    """
    recoded = deepcopy(model)
    wiring = Wiring(recoded)
    dtype, middle = _KINDS[encoding]
    other, other_middle = _KINDS[
        Encoding.UNSIGNED if encoding is Encoding.SIGNED else Encoding.SIGNED
    ]
    made: set[str] = set()
    for pair in wiring.nodes:
        if pair.op_type != "QuantizeLinear" or pair.input[0] in wiring.constants:
            continue
        takers = wiring.consumers[pair.output[0]]
        if any(taker.op_type != "DequantizeLinear" for taker in takers):
            continue  # operators other than DequantizeLinear use the integers
        zero = wiring.constants.get(pair.input[2]) if len(pair.input) > 2 else None
        if zero is None:
            raise UnsupportedModel(
                f"{pair.name} has no constant zero point: export the model with constant zero "
                "points"
            )
        old = to_array(zero)
        if old.dtype != other or (old != other_middle).any():
            continue
        name = f"{zero.name}/{encoding.value}"
        if name not in made:  # several pairs may share a zero point
            made.add(name)
            recoded.graph.initializer.append(from_array(np.full_like(old, middle, dtype), name))
        for node in (pair, *takers):
            del node.input[2:]
            node.input.append(name)
    rebuild(recoded, iter(wiring.nodes))
    if encoding.weight_bits == 7:
        narrow_weights(recoded)
    return recoded


def narrow_weights(model: onnx.ModelProto) -> None:
    """Halve int8 weights in channels where the sum of two weights exceeds `MAX_OF_PAIRS`.

    The scale of such a channel is doubled, so its weights have 7 bits. Some graphs contain float
    weights and quantise them with QuantizeLinear. These weights are rounded only once, with the
    doubled scale. Weights with a zero point other than 0, or with several scales per channel, stay
    unchanged.
    """
    wiring = Wiring(model)
    for node in wiring.nodes:
        steps = _steps(wiring, node)
        scale = _constant(wiring, node.input[1]) if steps is not None else None
        if steps is None or scale is None or scale.ndim > 1:
            continue
        along = _along(node, scale, steps.ndim)
        kept = tuple(i for i, length in enumerate(along) if length != 1)
        others = tuple(i for i, length in enumerate(along) if length == 1)
        rows = steps.transpose(*kept, *others).reshape(scale.size, -1)
        wide = pair_sums(rows) > MAX_OF_PAIRS
        if not wide.any():
            continue
        factor = (1 + wide).reshape(scale.shape).astype(scale.dtype)
        halved = np.rint(steps / factor.reshape(along)).astype(np.int8)
        _replace(model, node, halved, scale * factor)
        for layer in wiring.consumers[node.output[0]]:
            if len(layer.input) > 2 and layer.input[1] == node.output[0]:
                _narrow_bias(model, wiring, layer.input[2], factor)
    taken = {name for node in wiring.nodes for name in node.input} | wiring.outputs
    rebuild(model, (node for node in wiring.nodes if not taken.isdisjoint(node.output)))


def _narrow_bias(model: onnx.ModelProto, wiring: Wiring, name: str, factor: NDArray[Any]) -> None:
    """Adapt an int32 bias to the new scales of its layer's weights.

    If the scales differed, ONNX Runtime would compute the layer in float.
    """
    node = wiring.producer.get(name)
    if node is None or node.op_type != "DequantizeLinear":
        return
    steps, scale = (_constant(wiring, name) for name in node.input[:2])
    if steps is None or scale is None or steps.dtype != np.int32 or scale.shape != factor.shape:
        return
    halved = np.rint(steps / factor.astype(np.float64)).astype(np.int32)
    _replace(model, node, halved, scale * factor)


def _steps(wiring: Wiring, node: onnx.NodeProto) -> NDArray[np.float32] | None:
    """Return the constant weights of a DequantizeLinear, divided by their scale.

    Weights that the graph itself quantises are not rounded yet. If the node has no such weights, or
    their zero point is not 0, return None.
    """
    if node.op_type != "DequantizeLinear":
        return None
    zero = _constant(wiring, node.input[2]) if len(node.input) > 2 else np.zeros(1, np.int8)
    if zero is None or zero.dtype != np.int8 or zero.any():
        return None
    steps = _constant(wiring, node.input[0])
    if steps is not None:
        return steps.astype(np.float32) if steps.dtype == np.int8 else None
    source = wiring.producer.get(node.input[0])
    if source is None or source.op_type != "QuantizeLinear" or source.input[1:] != node.input[1:]:
        return None
    real, scale = (_constant(wiring, name) for name in source.input[:2])
    if real is None or scale is None or scale.ndim > 1:
        return None
    exact = real / scale.reshape(_along(node, scale, real.ndim))
    clipped: NDArray[np.float32] = np.clip(exact, -128, 127).astype(np.float32)
    return clipped


def _along(node: onnx.NodeProto, scale: NDArray[Any], dimensions: int) -> list[int]:
    """Return the shape of the scales for broadcasting with a weight of this number of dimensions.

    There is one scale, or one scale for each channel.
    """
    shape = [1] * dimensions
    if scale.size > 1:
        shape[int(attribute(node, "axis", 1))] = scale.size
    return shape


def _replace(
    model: onnx.ModelProto, node: onnx.NodeProto, steps: NDArray[Any], scale: NDArray[Any]
) -> None:
    for i, (what, value) in enumerate((("steps", steps), ("scale", scale))):
        node.input[i] = f"{node.output[0]}/narrow/{what}"
        model.graph.initializer.append(from_array(value, node.input[i]))


def _constant(wiring: Wiring, name: str) -> NDArray[Any] | None:
    return to_array(wiring.constants[name]) if name in wiring.constants else None
