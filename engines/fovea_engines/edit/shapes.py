"""Infers the shapes of a graph anew, and reads that of its first input."""

from __future__ import annotations

import onnx

from fovea_engines.edit.edited import copied
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the graph with all shapes that follow from its inputs, none that the file states."""
    bare = copied(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(bare, data_prop=True).graph


def refresh(model: onnx.ModelProto) -> None:
    """Drop the shapes of inner tensors, and state those of the outputs anew."""
    for value, better in zip(model.graph.output, infer(model).output, strict=True):
        rank = len(value.type.tensor_type.shape.dim)
        value.type.CopyFrom(better.type)
        if not better.type.tensor_type.HasField("shape"):
            for _ in range(rank):
                value.type.tensor_type.shape.dim.add()
    del model.graph.value_info[:]


def first_input(model: onnx.ModelProto) -> TensorSpec:
    """Return the input that takes the image; UnsupportedModel if it has no dimensions."""
    inputs = graph_inputs(model)
    if not inputs or not inputs[0].shape:
        raise UnsupportedModel("the model's first input has no shape: export it with one")
    return inputs[0]


def has_batch(spec: TensorSpec) -> bool:
    """Return True unless the first dimension is a channel, as in torchvision's [3, h, w]."""
    return len(spec.shape) > 1 and not (len(spec.shape) == 3 and spec.shape[0] == 3)
