"""Fills in what networks take beside the image, in the graph, and gives them colour images."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.numpy_helper import from_array

from fovea_engines.heads.image_inputs import GREY, enlarging, factor_of, filled, image_of, is_grey
from fovea_engines.heads.signature import image_sides
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.session import Array, TensorSpec


def take_colour(model: onnx.ModelProto) -> None:
    """Let a network of grey images take colour images, RGB."""
    image = image_of(graph_inputs(model))
    if not is_grey(image):
        return
    write = Writer(image.name)
    inner = write("Conv", image.name, GREY.reshape(1, 3, 1, 1).astype(image.dtype))
    for node in model.graph.node:
        node.input[:] = [inner if taken == image.name else taken for taken in node.input]
    _insert(model, write)
    [value] = (one for one in model.graph.input if one.name == image.name)
    value.type.tensor_type.shape.dim[1].dim_value = 3


def fill_in_size_inputs(model: onnx.ModelProto) -> None:
    """Compute the inputs beside the image, whose size is fixed, in the graph."""
    inputs = graph_inputs(model)
    image = image_of(inputs)
    for spec in inputs:
        if spec is image:
            continue
        if (factor := factor_of(image, spec)) is not None:
            _write_enlarged(model, image, spec.name, factor)
        elif image.shape[0] == -1:
            value = filled(spec, *image_sides(image))
            _write_for_each_row(model, image.name, spec.name, value)
        else:
            value = np.repeat(filled(spec, *image_sides(image)), image.shape[0], axis=0)
            model.graph.initializer.append(from_array(value, spec.name))
        [declared] = (each for each in model.graph.input if each.name == spec.name)
        model.graph.input.remove(declared)


def _write_for_each_row(model: onnx.ModelProto, image: str, name: str, value: Array) -> None:
    write = Writer(name)
    # Of operators that every opset since 8 has in this form.
    rows = write("Gather", write("Shape", image), np.array([0]))
    write("Expand", value, write("Concat", rows, np.array(value.shape[1:]), axis=0))
    write.name(name)
    _insert(model, write)


def _write_enlarged(model: onnx.ModelProto, image: TensorSpec, name: str, factor: int) -> None:
    """Write `enlarged`. Resize does the same, and takes six times as long in ONNX Runtime."""
    write = Writer(name)
    down, across = (enlarging(side, factor).astype(image.dtype) for side in image_sides(image))
    levels = write("Round", write("MatMul", down, write("MatMul", image.name, across.T.copy())))
    write("Min", write("Max", levels, np.zeros(1, image.dtype)), np.full(1, 255, image.dtype))
    write.name(name)
    _insert(model, write)


def _insert(model: onnx.ModelProto, write: Writer) -> None:
    model.graph.initializer.extend(write.constants)
    for node in reversed(write.nodes):
        model.graph.node.insert(0, node)
