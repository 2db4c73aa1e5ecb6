"""Adds preprocessing to a graph: the layout, channel order and normalisation of resized images."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.wiring import rebuild
from fovea_engines.onnx_graph.writer import Writer
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec


def add_image_front(model: onnx.ModelProto, spec: PreprocessSpec) -> PreprocessSpec:
    """Make a model accept decoded images: uint8 [batch, height, width, 3], RGB.

    The host or the GPU still resizes and pads the images before the graph. The model is changed in
    place. It must have its final precision and only one input, an image. The input keeps its name.

    Returns:
        The preprocessing for the new input. It has the geometry and padding of `spec`, but leaves
        the values of the pixels unchanged.

    Raises:
        UnsupportedModel: the preprocessing resizes images without rounding to whole pixel values,
            so a uint8 input cannot hold the resized image.
    """
    if spec.resample == "linear-float":
        raise UnsupportedModel(
            "this family resizes images without rounding, but --image-front needs rounded uint8 "
            "images: build without --image-front, or set another resample in --preprocess"
        )
    name = graph_inputs(model)[0].name
    write = Writer(f"{name}/front")
    row = _write_row(write, name, spec)
    for node in model.graph.node:
        node.input[:] = [row if taken == name else taken for taken in node.input]
    model.graph.initializer.extend(write.constants)
    rebuild(model, iter([*write.nodes, *model.graph.node]))

    [value] = (v for v in model.graph.input if v.name == name)
    value.type.tensor_type.elem_type = TensorProto.UINT8
    sides = value.type.tensor_type.shape.dim[1:]
    for dim, length in zip(sides, (spec.height, spec.width, 3), strict=True):
        dim.dim_value = length
    return spec.bare


def _write_row(write: Writer, name: str, spec: PreprocessSpec) -> str:
    row, channels = name, 3
    if spec.dtype != "uint8":
        # TensorRT has only the operator Cast for uint8 inputs. The cast is to float32 even for a
        # float16 model: float16 holds 0 to 255 exactly, but not the normalised values.
        row = write.cast(row, "float32")
    if spec.layout == "NCHW":
        row, channels = write("Transpose", row, perm=[0, 3, 1, 2]), 1
    if spec.channels == "BGR":
        row = write("Gather", row, np.array([2, 1, 0]), axis=channels)
    if not spec.whole:
        row = _write_values(write, row, spec)
    if spec.dtype in ("float16", "int32"):
        row = write.cast(row, spec.dtype)
    return row


def _write_values(write: Writer, row: str, spec: PreprocessSpec) -> str:
    """Write (v * scale - mean) / std as (v - mean / scale) / (std / scale).

    This form divides by 255 instead of multiplying by 1 / 255, for example. Float32 holds 255
    exactly, but not 1 / 255. So most results are bit-identical to the host's results.
    """
    shape = (3, 1, 1) if spec.layout == "NCHW" else (3,)
    mean = (np.array(spec.mean) / spec.scale).astype(np.float32).reshape(shape)
    std = (np.array(spec.std) / spec.scale).astype(np.float32).reshape(shape)
    if mean.any():
        row = write("Sub", row, mean)
    if (std != 1).any():
        row = write("Div", row, std)
    return row
