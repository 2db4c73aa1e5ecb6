"""Reads the constants of a graph."""

from __future__ import annotations

import onnx


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and the tensors of Constant nodes, by name."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found
