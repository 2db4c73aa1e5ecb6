"""Reads how finely an exporter has quantised the outputs of a graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from fovea_engines.onnx_graph.wiring import constants_of

# Their numbers are those of their first input.
_SAME = {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "Flatten"}


def step_of(model: onnx.ModelProto, output: int) -> float | None:
    """Return the step between the numbers of an output; None where it is not quantised as one."""
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(model.graph.output[output].name)
    while node is not None and node.op_type in _SAME:
        node = makers.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear":
        return None
    scale = constants_of(model).get(node.input[1])
    if scale is None or (steps := to_array(scale)).size != 1:
        return None
    return float(np.float32(steps.item()))
