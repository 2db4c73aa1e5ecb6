"""A model as PyTorch exports it after training with quantisation."""

from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fovea_engines.onnx_graph.wiring import rebuild
from fovea_engines.quantization.ranges import Ranges


def quantised_in_training(
    model: onnx.ModelProto, ranges: Ranges, layers: Collection[str]
) -> onnx.ModelProto:
    """A copy in which layers take int8: activations through Q/DQ, and float weights as well.

    Scales and zero points are Constant nodes, zero points are 0, and nothing is folded.
    """
    trained = onnx.ModelProto()
    trained.CopyFrom(model)
    rebuild(trained, iter(list(_nodes(trained, ranges, layers))))
    return trained


def _nodes(model, ranges, layers):
    weights = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    done = set()
    for node in model.graph.node:
        if node.name in layers:
            source, weight = node.input[:2]
            if source not in done:
                done.add(source)
                scale = np.float32(max(map(abs, ranges.tensors[source])) / 127)
                yield from _pair(source, scale, np.int8(0))
            scale = np.abs(weights[weight]).max(axis=(1, 2, 3)) / 127
            yield from _pair(weight, scale.clip(1e-8), np.zeros(len(scale), np.int8), axis=0)
            node.input[0], node.input[1] = f"{source}/DQ", f"{weight}/DQ"
        yield node


def _pair(name, scale, zero, **axis):
    for value, kind in ((scale, "scale"), (zero, "zero")):
        tensor = numpy_helper.from_array(np.asarray(value))
        yield helper.make_node("Constant", [], [f"{name}/{kind}"], value=tensor)
    how = [f"{name}/scale", f"{name}/zero"]
    yield helper.make_node("QuantizeLinear", [name, *how], [f"{name}/Q"], **axis)
    yield helper.make_node("DequantizeLinear", [f"{name}/Q", *how], [f"{name}/DQ"], **axis)
