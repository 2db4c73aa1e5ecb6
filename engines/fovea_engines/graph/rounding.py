"""Simulates float16 in float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

from fovea_engines.graph.wiring import attribute, rebuild


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph that rounds to float16, and overflows, wherever a GPU does.

    CPU runtimes take a float16 graph, as `to_half` makes it, only as a hint: ONNX Runtime and
    OpenVINO compute it in float32 from end to end, where 100 * 1000 does not overflow. In the
    returned graph every result passes through float16. Integers are multiplied as such, so the
    output of a DequantizeLinear is not rounded.
    """
    half = onnx.TensorProto.FLOAT16
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    halves = {v.name for v in inferred if v.type.tensor_type.elem_type == half}
    simulated = onnx.ModelProto()
    simulated.CopyFrom(model)
    for constant in simulated.graph.initializer:
        if constant.data_type == half:
            constant.CopyFrom(from_array(to_array(constant).astype(np.float32), constant.name))
    rebuild(simulated, _nodes(simulated, halves))
    return simulated


def _nodes(model: onnx.ModelProto, halves: set[str]) -> Iterator[onnx.NodeProto]:
    for node in list(model.graph.node):
        if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT16:
            node.op_type = "Identity"
            del node.attribute[:]
        if node.op_type == "DequantizeLinear":
            yield node
            continue
        ends = [name for name in node.output if name in halves]
        for i, name in enumerate(node.output):
            if name in ends:
                node.output[i] = f"{name}/exact"
        yield node
        for name in ends:
            exact, half = f"{name}/exact", f"{name}/rounded"
            yield make_node("Cast", [exact], [half], half, to=TensorProto.FLOAT16)
            yield make_node("Cast", [half], [name], f"{half}/back", to=TensorProto.FLOAT)
