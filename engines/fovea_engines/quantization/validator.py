"""Checks a quantised graph for parts that TensorRT refuses or computes otherwise than written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from fovea_engines.onnx_graph.wiring import Wiring, attribute
from fovea_preprocess.errors import UnsupportedModel

_ACTIVATIONS = {
    *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Elu", "Mish", "Softplus", "Gelu"),
}
_SHOWN = 3


def validate(model: onnx.ModelProto) -> None:
    """Refuse, as UnsupportedModel, a graph that TensorRT would refuse or read otherwise.

    The rules are TensorRT's for explicit quantisation; it reads uint8 as int8 and clips.
    """
    faults = list(_faults(model))
    if faults:
        more = f" ({len(faults)} faults in all)" if len(faults) > _SHOWN else ""
        raise UnsupportedModel(
            f"TensorRT cannot take the graph: {'; '.join(faults[:_SHOWN])}{more}"
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
            yield f"{node.name} dequantises {kind}; only int8 is taken, and biases stay float"
    if len(node.input) < 3 or not node.input[2]:
        if node.op_type == "QuantizeLinear":
            yield f"{node.name} has no zero point, which makes it uint8"
        return
    zero = wiring.constants.get(node.input[2])
    if zero is None:
        yield f"{node.name} has a zero point that is computed; it must be a constant"
    elif to_array(zero).dtype != np.int8:
        yield f"{node.name} is {to_array(zero).dtype}, which is read as int8 and clipped"
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
        yield f"{node.name} stands between {maker.name} and its activation, and keeps them apart"


def _is_of_weights(wiring: Wiring, node: onnx.NodeProto) -> bool:
    if node.input[0] in wiring.constants:
        return True
    maker = wiring.producer.get(node.input[0])
    return maker is not None and not wiring.constants.keys().isdisjoint(maker.input[:1])
