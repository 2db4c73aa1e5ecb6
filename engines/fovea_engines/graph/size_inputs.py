"""Fills in what detectors take beside the image, as constants of the graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.numpy_helper import from_array

from fovea_engines.detect.heads.signature import image_sides
from fovea_engines.detect.size_values import filled, image_of
from fovea_engines.graph.tensors import graph_inputs
from fovea_engines.graph.writer import Writer
from fovea_engines.session import Array


def fill_in_size_inputs(model: onnx.ModelProto) -> None:
    """Turn the inputs beside the image, whose size is fixed, into constants of the graph."""
    inputs = graph_inputs(model)
    image = image_of(inputs)
    for spec in inputs:
        if spec is image:
            continue
        value = filled(spec, *image_sides(image))
        if image.shape[0] == -1:
            _write_for_each_row(model, image.name, spec.name, value)
        else:
            value = np.repeat(value, image.shape[0], axis=0)
            model.graph.initializer.append(from_array(value, spec.name))
        [declared] = (each for each in model.graph.input if each.name == spec.name)
        model.graph.input.remove(declared)


def _write_for_each_row(model: onnx.ModelProto, image: str, name: str, value: Array) -> None:
    write = Writer(name)
    # Of operators that every opset since 8 has in this form.
    rows = write("Gather", write("Shape", image), np.array([0]))
    write("Expand", value, write("Concat", rows, np.array(value.shape[1:]), axis=0))
    write.name(name)
    model.graph.initializer.extend(write.constants)
    for node in reversed(write.nodes):
        model.graph.node.insert(0, node)
