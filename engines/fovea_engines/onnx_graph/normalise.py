"""Converts exported graphs to a common form.

A graph in this form has a fixed image size, a named batch dimension, no shape arithmetic, and a
recent opset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
from onnx import version_converter
from onnx.helper import make_attribute, set_model_props
from onnx.numpy_helper import from_array

from fovea_engines.heads.image_inputs import (
    GREY,
    factor_of,
    fill_input,
    image_of,
    is_grey,
    make_enlarging_matrix,
)
from fovea_engines.heads.metadata import image_size
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.onnx_graph.rewrites import fuse_focus, gather_first_columns, move_late_transpose
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of, opset_of
from fovea_engines.onnx_graph.wiring import COUNTING, attribute, outputs_after
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import UnsupportedModel

OPSET = 19  # first opset that has all operators which later passes write
_IR_VERSION = 9  # version of the ONNX file format for this opset
_DEFAULT_SIZE = (640, 640)
_CLASSIFIERS_SIZE = (224, 224)
# Numbers of columns of a table of boxes. Such a table and the scores of a classifier are both a
# single output with two dimensions. But the first dimension of a table is not the batch.
_ROWS = 6, 7
_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}
_PLACES = "coordinate_transformation_mode"
_OPSET_OF_PLACES = 11  # first opset in which Resize has this attribute
# Two batch sizes for shape inference. A dimension that has the same length for both does not depend
# on the batch size.
_BATCHES = 2, 3


def take_colour(model: onnx.ModelProto) -> None:
    """Make a model for grey images accept RGB images."""
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
    """Compute all inputs other than the image inside the graph, and remove them from the inputs.

    The image must have a fixed size, because these inputs depend on it.
    """
    inputs = graph_inputs(model)
    image = image_of(inputs)
    for spec in inputs:
        if spec is image:
            continue
        if (factor := factor_of(image, spec)) is not None:
            _write_enlarged(model, image, spec.name, factor)
        elif image.shape[0] == -1:
            value = fill_input(spec, *image_sides(image))
            _write_for_each_row(model, image.name, spec.name, value)
        else:
            value = np.repeat(fill_input(spec, *image_sides(image)), image.shape[0], axis=0)
            model.graph.initializer.append(from_array(value, spec.name))
        [declared] = (each for each in model.graph.input if each.name == spec.name)
        model.graph.input.remove(declared)


def _write_for_each_row(model: onnx.ModelProto, image: str, name: str, value: Array) -> None:
    write = Writer(name)
    # All opsets since 8 define these operators with these inputs.
    rows = write("Gather", write("Shape", image), np.array([0]))
    write("Expand", value, write("Concat", rows, np.array(value.shape[1:]), axis=0))
    write.name(name)
    _insert(model, write)


def _write_enlarged(model: onnx.ModelProto, image: TensorSpec, name: str, factor: int) -> None:
    """Write `enlarge` of heads/image_inputs.py as matrix products.

    The operator Resize has the same result, but is six times slower in ONNX Runtime.
    """
    write = Writer(name)
    down, across = (
        make_enlarging_matrix(side, factor).astype(image.dtype) for side in image_sides(image)
    )
    levels = write("Round", write("MatMul", down, write("MatMul", image.name, across.T.copy())))
    write("Min", write("Max", levels, np.zeros(1, image.dtype)), np.full(1, 255, image.dtype))
    write.name(name)
    _insert(model, write)


def _insert(model: onnx.ModelProto, write: Writer) -> None:
    model.graph.initializer.extend(write.constants)
    for node in reversed(write.nodes):
        model.graph.node.insert(0, node)


def normalise(
    model: onnx.ModelProto,
    size: tuple[int, int] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> onnx.ModelProto:
    """Convert an image model into the form that backends compile. `model` is also changed in place.

    The returned model has one input: a batch of images of a fixed size. The size is the first known
    one of: `size`; the model's own size; `imgsz` in its metadata; the default of 224x224 for a
    classifier and 640x640 for other models. A dynamic batch dimension stays dynamic if all outputs
    depend on it. Otherwise the batch size becomes 1.

    Args:
        model: model to convert.
        size: (height, width) of the input in pixels; None means the model's size or the default.
        note: function that receives remarks about the size, the batch, and an opset that cannot be
            converted.

    Raises:
        UnsupportedModel: the input is not a batch of images, an input besides the image cannot be
            computed, or onnxslim cannot simplify the graph. The message names the unsupported part.
        InvalidOption: the model does not accept `size`.
    """
    metadata = metadata_of(model)
    if size is None and (taken := open_size(model)) is not None:
        note(
            f"the input size is dynamic, so the engine is built for {taken}: use --size HxW for "
            "another size"
        )
    pin_inputs(model, size)
    del model.graph.value_info[:]  # these shapes belong to the previous input size
    model = _slim(model)
    model = _convert_opset(model, note)
    fuse_focus(model)
    move_late_transpose(model)
    gather_first_columns(model)
    _infer_outputs(model, note)
    _name_nodes(model)
    set_model_props(model, metadata)
    return model


def pin_inputs(model: onnx.ModelProto, size: tuple[int, int] | None = None) -> None:
    """Give a model one image input of a fixed size, in place.

    `normalise` describes the arguments and errors.
    """
    take_colour(model)
    _pin_size(model, size)
    fill_in_size_inputs(model)


def open_size(model: onnx.ModelProto) -> str | None:
    """Return the default size of a model that accepts any size, e.g. "640x640".

    Returns:
        "HEIGHTxWIDTH" in pixels. If the model has a fixed size or is not an image model, None.
    """
    try:
        image = _batch_of_images(model)
    except UnsupportedModel:
        return None
    if image_layout(image) is None or -1 not in image_sides(image):
        return None
    height, width = image_size(metadata_of(model)) or _usual_size(model, image)
    return f"{height}x{width}"


def control_flow(model: onnx.ModelProto) -> str:
    """Return the names of the control-flow operators, e.g. "If, Loop", or "" if there are none."""
    return ", ".join(sorted({node.op_type for node in model.graph.node} & _CONTROL_FLOW))


def _pin_size(model: onnx.ModelProto, size: tuple[int, int] | None) -> None:
    image = _batch_of_images(model)
    rank = len(image_of(graph_inputs(model)).shape)
    _check_image(image)
    dynamic = -1 in image.shape[1:]
    metadata = metadata_of(model)
    if rank == 3 or all(len(each.shape) == 2 for each in graph_outputs(model)):
        # These models accept sizes that are not multiples of the stride. torchvision's detectors
        # (rank 3) resize images themselves, and a classifier averages over an incomplete grid
        # without harm.
        metadata.setdefault("stride", "1")
    if size is None and dynamic and image_size(metadata) is None:
        size = _usual_size(model, image)
    row = default_preprocess(None, [image], metadata, size).row_shape
    if rank == 3:
        _add_batch(model, image.name, row)
    value = _image_value(model)
    batch, *sides = value.type.tensor_type.shape.dim
    if not batch.dim_value:
        batch.dim_param = "batch"
    for dim, length in zip(sides, row, strict=True):
        dim.dim_value = length


def _usual_size(model: onnx.ModelProto, image: TensorSpec) -> tuple[int, int]:
    height, width = image_sides(image)
    if (height == -1) != (width == -1):
        # Models that recognise a line of text have one fixed side and one dynamic side.
        usual = _DEFAULT_SIZE
        return (usual[0] if height == -1 else height), (usual[1] if width == -1 else width)
    shapes = [output.shape for output in graph_outputs(model)]
    classes = len(shapes) == 1 and len(shapes[0]) == 2
    if classes and shapes[0][1] in _ROWS:
        classes = _batch(model.graph.output[0]) == _batch(_image_value(model))
    return _CLASSIFIERS_SIZE if classes else _DEFAULT_SIZE


def _batch(value: onnx.ValueInfoProto) -> str | int | float:
    """Return the length or the name of the first dimension.

    If the dimension has neither, return NaN, which is unequal to every value.
    """
    dim = value.type.tensor_type.shape.dim[0]
    return dim.dim_param or dim.dim_value or math.nan


def _image_value(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    name = image_of(graph_inputs(model)).name
    value: onnx.ValueInfoProto = next(one for one in model.graph.input if one.name == name)
    return value


def _batch_of_images(model: onnx.ModelProto) -> TensorSpec:
    image = image_of(graph_inputs(model))
    return replace(image, shape=(1, *image.shape)) if len(image.shape) == 3 else image


def _check_image(image: TensorSpec) -> None:
    if image_layout(image) is None:
        raise UnsupportedModel(
            f"input {image.name} of shape {list(image.shape)} is not a colour image, [batch, 3, "
            "height, width] or [batch, height, width, 3]: export the model with such an input, or "
            "put the file into a repository as NAME/1/model.onnx to serve its tensors"
        )


def _add_batch(model: onnx.ModelProto, name: str, row: tuple[int, int, int]) -> None:
    """Make a model whose input has no batch dimension accept a batch of one image."""
    write = Writer(name)
    inner = write("Reshape", name, np.array(row))
    for node in model.graph.node:
        node.input[:] = [inner if taken == name else taken for taken in node.input]
    model.graph.initializer.extend(write.constants)
    model.graph.node.insert(0, write.nodes[0])
    [value] = (v for v in model.graph.input if v.name == name)
    value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim  # imported here: a server that rebuilds an engine does not need onnxslim

    try:
        slimmed: onnx.ModelProto = onnxslim.slim(model)
    except Exception as error:  # the passes of onnxslim may raise any error
        raise UnsupportedModel(
            f"onnxslim cannot simplify the graph ({type(error).__name__}: {error}): export the "
            "model with a fixed size"
        ) from error
    return slimmed


def _convert_opset(model: onnx.ModelProto, note: Callable[[str], None]) -> onnx.ModelProto:
    opset = opset_of(model) or OPSET
    if opset < OPSET and (branches := control_flow(model)):
        note(f"opset {opset} is kept, because {branches} cannot be converted")
    elif opset < OPSET:
        try:
            if opset < _OPSET_OF_PLACES:
                model = version_converter.convert_version(model, _OPSET_OF_PLACES)
                _keep_places(model)
            model = version_converter.convert_version(model, OPSET)
        except (version_converter.ConvertError, RuntimeError, ValueError) as error:
            note(f"opset {opset} is kept: {str(error).strip().splitlines()[0]}")
        else:
            model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def _keep_places(model: onnx.ModelProto) -> None:
    """Set the coordinate mode of each Resize that has none to the meaning of older opsets.

    Otherwise ONNX's version converter would apply the default of newer opsets.
    """
    for node in model.graph.node:
        if node.op_type == "Resize" and attribute(node, _PLACES, None) is None:
            places = {_PLACES: "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(make_attribute(*each) for each in places.items())


def _infer_outputs(model: onnx.ModelProto, note: Callable[[str], None]) -> None:
    """Replace the exporter's output shapes by inferred shapes for the fixed image size.

    A dynamic batch size is fixed at 1, with a note, if an output does not depend on it. Examples
    are an output [k, 6] with the boxes of all images, and a batch size that the exporter wrote into
    the graph.
    """
    trials = [_infer_lengths(model)]
    if graph_inputs(model)[0].shape[0] == -1:
        trials = [_infer_lengths(model, rows) for rows in _BATCHES]
        if (whole := _find_unbatched(model, trials)) is not None:
            note(
                f"accepts one image at a time, because output {whole} does not have one row per "
                "image"
            )
            _fix_batch(model, 1)
            trials = [_infer_lengths(model)]
    for value, *shapes in zip(model.graph.output, *trials, strict=True):
        known = [shape for shape in shapes if shape is not None]
        if len(known) == len(shapes):
            del value.type.tensor_type.shape.dim[:]
            for lengths in zip(*known, strict=True):
                same = len(set(lengths)) == 1
                value.type.tensor_type.shape.dim.add(
                    dim_value=(lengths[0] or None) if same else None,
                    dim_param=None if same else "batch",
                )
    del model.graph.value_info[:]


def _find_unbatched(
    model: onnx.ModelProto, trials: Sequence[Sequence[tuple[int, ...] | None]]
) -> str | None:
    """Return the name of the first output whose first dimension is not the batch.

    If all outputs have a batch dimension, return None. `trials` are the output shapes for each
    batch size of `_BATCHES`.
    """
    counted = outputs_after(model, COUNTING)
    for value, *shapes in zip(model.graph.output, *trials, strict=True):
        rows = tuple((-1 if shape is None else next(iter(shape), 1)) for shape in shapes)
        unknown = min(rows) < 1
        if rows != _BATCHES and (not unknown or value.name in counted):
            return str(value.name)
    return None


def _infer_lengths(
    model: onnx.ModelProto, batch: int | None = None
) -> list[tuple[int, ...] | None]:
    """Return the shapes of the outputs: 0 for an unknown length, None for an unknown rank."""
    bare = deepcopy(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    if batch is not None:
        _fix_batch(bare, batch)
    found = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph.output
    tensors = [value.type.tensor_type for value in found]
    return [
        tuple(dim.dim_value for dim in each.shape.dim) if each.HasField("shape") else None
        for each in tensors
    ]


def _fix_batch(model: onnx.ModelProto, batch: int) -> None:
    [name] = (spec.name for spec in graph_inputs(model))
    [value] = (v for v in model.graph.input if v.name == name)
    value.type.tensor_type.shape.dim[0].dim_value = batch


def _name_nodes(model: onnx.ModelProto) -> None:
    """Give every node a unique name, because later passes and messages refer to nodes by name."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}" + "_" * (f"{node.op_type}_{number}" in taken)
        taken.add(node.name)
