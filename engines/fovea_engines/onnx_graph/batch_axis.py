"""Adds a batch axis to the outputs of models for one image, if the exporter removed it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx.helper import make_node

from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, opset_of
from fovea_engines.onnx_graph.wiring import subgraphs
from fovea_engines.onnx_graph.writer import Writer

# First opset in which the axes of Unsqueeze are an input; before, they are an attribute.
_OPSET_OF_AXES = 13

NO_BATCH = "its outputs have no axis for the batch, so a build adds one as the first axis"
"""Note that a build prints for a model whose outputs have no batch axis."""


def lacks_batch(model: onnx.ModelProto) -> bool:
    """Return whether a model accepts one image, and no output has a batch axis of length 1."""
    firsts = [spec.shape[:1] for spec in graph_outputs(model)]
    [image] = graph_inputs(model)
    return image.shape[0] in (1, -1) and all(max(one, default=1) > 1 for one in firsts)


def add_batch(model: onnx.ModelProto) -> None:
    """Insert an axis of length 1 before the axes of each output of a model, in place."""
    for value in model.graph.output:
        inner = f"{value.name}/without_batch"
        _rename(model.graph.node, value.name, inner)
        write = Writer(value.name)
        if opset_of(model) < _OPSET_OF_AXES:
            name = f"{value.name}/batch"
            model.graph.node.append(make_node("Unsqueeze", [inner], [value.name], name, axes=[0]))
        else:
            write("Unsqueeze", inner, np.array([0]))
            write.name(value.name)
            model.graph.node.extend(write.nodes)
            model.graph.initializer.extend(write.constants)
        shape = value.type.tensor_type.shape
        shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
    del model.graph.value_info[:]


def _rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Rename a tensor in nodes and in their subgraphs, such as the branches of an If."""
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
        for graph in subgraphs(node):
            _rename(graph.node, old, new)
