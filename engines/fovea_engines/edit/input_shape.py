"""Sets the batch size and the image size of a graph.

A graph may also contain these sizes in constants. A batch size in the shapes of Reshape and Resize
is removed. Grids for an image size are computed again. Other constants that contain the image size,
e.g. to scale boxes, are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeAlias

import numpy as np
import onnx
from onnx.helper import make_tensor_value_info
from onnx.numpy_helper import from_array, to_array

from fovea_engines.edit.any_size import EXPORT, AnySize, any_size
from fovea_engines.edit.edited import Edited, copy_model, first_input, has_batch, infer, refresh
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.metadata import largest_stride
from fovea_engines.onnx_graph.tensors import metadata_of
from fovea_engines.onnx_graph.wiring import attribute, constants_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_Shape: TypeAlias = tuple[int, ...]
# Shape inference multiplies the batch size by this factor. It is a large prime number, so no other
# length is a multiple of it by chance.
_PRIME = 7919
_DYNAMIC = "batch"
# Tasks of models that return a box for each cell of a grid.
_ON_CELLS = ("detect", "segment", "pose", "obb")
_SMALL_WEIGHT = 64  # weights with more values cannot be shapes


def set_batch(model: onnx.ModelProto, batch: int | None) -> Edited:
    """Set the batch size of the inputs and outputs. None makes it dynamic.

    `check` must run the edited model to find out whether each row still has the result of a
    separate call.

    Raises:
        UnsupportedModel: the first input has no batch dimension.
    """
    first = first_input(model)
    if not has_batch(first):
        raise UnsupportedModel(
            f"input {first.name} of shape {list(first.shape)} has no batch dimension, so its "
            "batch size cannot be set"
        )
    old = first.shape[0]
    result = copy_model(model)
    outputs = [value for value in result.graph.output if _rows(value) == old]
    _free_constants(result, old)
    for value in result.graph.input:
        if _rows(value) == old:
            _set_rows(value, batch)
    refresh(result)
    for value in outputs if old > 0 else ():
        _set_rows(value, batch)
    names = ["dynamic" if rows in (-1, None) else str(rows) for rows in (batch, old)]
    return Edited(
        result,
        f"batch: {names[0]} instead of {names[1]}",
        together=True,
        advice=(
            "there the model combines images of the batch, or contains the batch size as a "
            "constant: export the model with the batch size that you need, or cut before that "
            "node with --output"
        ),
    )


def _rows(value: onnx.ValueInfoProto) -> int:
    """Return the length of the first dimension: -1 if it is dynamic, 0 for a scalar."""
    dims = value.type.tensor_type.shape.dim
    return (dims[0].dim_value or -1) if dims else 0


def _set_rows(value: onnx.ValueInfoProto, batch: int | None) -> None:
    dim = value.type.tensor_type.shape.dim[0]
    if batch is None:
        dim.dim_param = _DYNAMIC
    else:
        dim.dim_value = batch


def _free_constants(model: onnx.ModelProto, old: int) -> None:
    """Replace constant shapes of Reshape and Resize so that they accept any batch size.

    This is only done if the position of the batch in the shape is clear.
    """
    before = _shapes(model, old, 1)
    _free_resizes(model, before)
    # Change one Reshape at a time, because the shapes after it must be inferred again.
    while _free_reshape(model, before, _shapes(model, old, _PRIME), abs(old)):
        pass


def _shapes(model: onnx.ModelProto, old: int, times: int) -> dict[str, _Shape]:
    """Return a mapping from each tensor to its shape for a batch size multiplied by `times`.

    -1 means an unknown length. `old` is the batch size in the file; a dynamic batch size counts as
    1.
    """
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.node.extend(model.graph.node)
    bare.graph.output.extend(model.graph.output)
    bare.graph.input.extend(model.graph.input)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for value in bare.graph.input:
        if value.name not in weights and _rows(value) == old:
            _set_rows(value, abs(old) * times)
    listed = {value.name for value in bare.graph.input}
    for name, tensor in weights.items():  # omit the values of large weights, to save time
        if prod(tensor.dims) <= _SMALL_WEIGHT:
            bare.graph.initializer.append(tensor)
        elif name not in listed:
            bare.graph.input.append(make_tensor_value_info(name, tensor.data_type, tensor.dims))
    graph = infer(bare)
    return {
        value.name: tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def _free_reshape(
    model: onnx.ModelProto, before: Mapping[str, _Shape], now: Mapping[str, _Shape], batch: int
) -> bool:
    """Replace the first constant shape of a Reshape that does not depend on the batch size.

    Args:
        model: model, which is changed in place.
        before: shapes with the original batch size.
        now: shapes with a batch size that is larger by the factor `_PRIME`.
        batch: original batch size.

    Returns:
        True if a shape was replaced, False if all shapes depend on the batch size.
    """
    constants = constants_of(model)
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        source, out = node.input[0], node.output[0]
        taken, made = before.get(source, ()), before.get(out, ())
        axis = _axis(taken, now.get(source, ()), made, batch)
        if axis is None:
            continue
        grown = (*made[:axis], made[axis] * _PRIME, *made[axis + 1 :])
        name = f"{out}/shape"
        if now.get(out) == grown or node.input[1] == name:
            continue
        shape = to_array(constants[node.input[1]]).tolist()
        same = axis < len(taken) and taken[: axis + 1] == made[: axis + 1]
        if same and not attribute(node, "allowzero", 0):
            shape[axis] = 0  # 0 copies the input's length, so -1 can stay elsewhere
        else:
            shape = [*made[:axis], -1, *made[axis + 1 :]]
        model.graph.initializer.append(from_array(np.array(shape, np.int64), name))
        node.input[1] = name
        return True
    return False


def _axis(taken: _Shape, more: _Shape, made: _Shape, batch: int) -> int | None:
    """Return the index of the dimension that contains the batch in a Reshape's output.

    If it is not clear, return None. `taken` and `more` are the input's shapes with the original and
    the larger batch size; `made` is the output's original shape.

    A Reshape keeps the order of values. The batch is the outermost part of the input dimension
    whose length changed. So it is in the output dimension for which the product of all dimensions
    before it is the same as in the input.
    """
    grown = [axis for axis, (a, b) in enumerate(zip(taken, more, strict=False)) if a != b]
    if len(grown) != 1 or -1 in (*taken, *made) or more[grown[0]] != taken[grown[0]] * _PRIME:
        return None
    outside = prod(taken[: grown[0]])
    for axis, length in enumerate(made):
        if prod(made[:axis]) == outside and length % batch == 0:
            return axis
    return None


def _free_resizes(model: onnx.ModelProto, before: Mapping[str, _Shape]) -> None:
    """Replace the constant sizes of each Resize by scales. The scale of the batch is 1.

    ONNX defines a scale as output size / input size, and rounds the resulting size down
    (Resize-19). A Resize is only changed if its output size stays the same. Then its values also
    stay the same.
    """
    constants = constants_of(model)
    for node in model.graph.node:
        if node.op_type != "Resize" or len(node.input) < 4 or node.input[3] not in constants:
            continue
        taken = np.array(before.get(node.input[0], ()))
        sizes = to_array(constants[node.input[3]])
        if taken.shape != sizes.shape or (taken < 1).any():
            continue
        scales = (sizes / taken).astype(np.float32)
        if (np.floor(taken * scales) != sizes).any():
            continue
        name = f"{node.output[0]}/scales"
        model.graph.initializer.append(from_array(scales, name))
        node.input[2] = name
        del node.input[3]


def set_size(model: onnx.ModelProto, size: tuple[int, int] | None) -> Edited:
    """Set the image size of a model, and `imgsz` in its metadata.

    `size` is (height, width) in pixels. None makes the model accept any size.

    Constants that depend on the image size by a known rule, e.g. of a grid, are computed again.
    Other constants that do not fit the new size are only found when `check` runs the model.

    Raises:
        InvalidOption: the size is not a multiple of the stride in the metadata, or of the
            detector's stride.
        UnsupportedModel: the input is not an image, or a constant follows no known rule.
    """
    metadata = metadata_of(model)
    if size is not None and "stride" in metadata:
        _check_sides(size, largest_stride(metadata), "the stride that the model's metadata states")
    found = any_size(model)
    head, _ = recognise_graph(model)
    if size is not None and head.family is not None and head.task in _ON_CELLS:
        _check_sides(size, found.stride, f"the largest stride of its head, {head.family}")
    name = found.image.name
    if size is None:
        every = f"any size of multiples of {found.stride}" if found.stride > 1 else "any size"
        return Edited(found.dynamic(), f"size: {name} accepts {every}", advice=EXPORT)
    result = found.at(size)
    for entry in result.metadata_props:
        if entry.key == "imgsz":
            entry.value = str(list(size))
    return Edited(
        result,
        f"size: {name} accepts {size[0]}x{size[1]}",
        bridge=_dynamic(found),
        advice=(
            "a constant contains the original size, or the model's stride does not divide the new "
            f"one; {EXPORT}"
        ),
    )


def _check_sides(size: tuple[int, int], stride: int, origin: str) -> None:
    if not any(side < 1 or side % stride for side in size):
        return
    near = [[max(1, side // stride) * stride, -(-side // stride) * stride] for side in size]
    sizes = dict.fromkeys(f"{height}x{width}" for height, width in zip(*near, strict=True))
    raise InvalidOption(
        f"size {size[0]}x{size[1]}: both sides must be multiples of {stride}, {origin}: use "
        f"{' or '.join(sizes)}"
    )


def _dynamic(found: AnySize) -> onnx.ModelProto | None:
    """Return the model for any size, or None if it cannot be created.

    The original and the edited model are compared with this model.
    """
    try:
        return found.dynamic()
    except UnsupportedModel:
        return None
