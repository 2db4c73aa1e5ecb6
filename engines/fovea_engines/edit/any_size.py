"""Makes a model for one image size accept other sizes, even if it stores its grid as constants.

Shapes are inferred for two image sizes: the size in the file, and a different size. If a node's
constants do not fit the shapes at the different size, they must be replaced. This is possible if
they follow a known rule: they are numbers of cells, or tables with a value per cell that grow
evenly along rows and columns. A rule must reproduce the constants in the file exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, prod
from typing import TypeAlias

import numpy as np
import onnx
from onnx.helper import make_tensor_value_info
from onnx.numpy_helper import from_array, to_array

from fovea_engines.edit.cells import Sides, Size, Sized
from fovea_engines.edit.resized import Resizable, Unknown, node_values
from fovea_engines.heads.image_inputs import image_of
from fovea_engines.heads.metadata import largest_stride
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.onnx_graph.plain_session import expose_tensors, onnxruntime_errors, open_plain
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of, opset_of
from fovea_engines.onnx_graph.wiring import constants_of, tensors_read
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import UnsupportedModel

Place: TypeAlias = tuple[int, int]
"""Index of a node in the graph, and index of one of its inputs."""
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

EXPORT = (
    "export the model with dynamic axes (`yolo export format=onnx dynamic=True`, or "
    "torch.onnx.export with dynamic_axes={'images': {0: 'batch', 2: 'height', 3: 'width'}})"
)
_OPSET = 11  # first opset with Range
_SMALL_WEIGHT = 64  # weights with more values cannot be shapes
_SMALL_CONSTANT = 8  # constants with more values cannot be sizes
# Operator -> index of its input that may contain the image size; None means any input.
_SIZED: dict[str, int | None] = {
    "Expand": 1,
    "ConstantOfShape": 0,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Min", "Max", "Clip")),
}


@dataclass(frozen=True, slots=True, eq=False)
class AnySize:
    """A model for one image size, and the replacements of its constants at other sizes.

    Attributes:
        model: unchanged model.
        image: image input of the model.
        stride: both sides of an image must be multiples of this number of pixels.
        values: place of each constant that depends on the size -> value that replaces the constant.
    """

    model: onnx.ModelProto
    image: TensorSpec
    stride: int
    values: Mapping[Place, Sized]

    def at(self, size: Size) -> onnx.ModelProto:
        """Return a copy of the model for images of another size."""
        made = _copy(self.model)
        names: dict[int, str] = {}
        for place, value in self.values.items():
            node, slot = made.graph.node[place[0]], place[1]
            name = names.setdefault(id(value), f"{node.output[0]}/{slot}/{size[0]}x{size[1]}")
            if name not in {tensor.name for tensor in made.graph.initializer}:
                made.graph.initializer.append(from_array(value.at(size), name))
            node.input[slot] = name
        _set_sides(made, self.image, size)
        return _refresh_shapes(made, infer_shapes(made, self.image, size))

    def dynamic(self) -> onnx.ModelProto:
        """Return a copy of the model that accepts all sizes which are multiples of the stride.

        Raises:
            UnsupportedModel: the model cannot run at another size, or its opset is too old.
        """
        if self.values and opset_of(self.model) < _OPSET:
            raise UnsupportedModel(
                f"the model has opset {opset_of(self.model)}, but a dynamic size needs operators "
                f"of opset {_OPSET}: {EXPORT}"
            )
        made, write = _copy(self.model), Writer(f"{self.image.name}/size")
        sides = Sides(write, self.image.name, _axis(self.image))
        names: dict[int, str] = {}
        for (node, slot), value in self.values.items():
            if id(value) not in names:
                names[id(value)] = value.write(sides)
            made.graph.node[node].input[slot] = names[id(value)]
        _set_sides(made, self.image, None)
        nodes = [*write.nodes, *made.graph.node]
        del made.graph.node[:]
        made.graph.node.extend(nodes)
        made.graph.initializer.extend(write.constants)
        size = image_sides(self.image)
        if -1 in size:
            return made
        other = another(size, self.stride)
        before = infer_shapes(self.model, self.image, size)
        now = infer_shapes(self.model, self.image, other, self.values)
        _run(made, self.image, other)
        return _refresh_shapes(
            made, {name: _common(before[name], now.get(name)) for name in before}
        )


def any_size(model: onnx.ModelProto) -> AnySize:
    """Find the constants of a model that depend on the image size, and their rules.

    Raises:
        UnsupportedModel: a constant follows no known rule, or the model does not accept images. The
            message has advice on the export of the model.
    """
    image = image_of(graph_inputs(model))
    if image_layout(image) is None:
        raise UnsupportedModel(
            f"input {image.name} of shape {list(image.shape)} is not an image: only the size of "
            "[batch, 3, height, width] or [batch, height, width, 3] can be set"
        )
    size, metadata = image_sides(image), metadata_of(model)
    stride = largest_stride(metadata)
    if -1 in size:
        return AnySize(model, image, stride if "stride" in metadata else 1, {})
    if size[0] < 2 * stride and size[0] % stride:
        # This model recognises a line of text. It has a fixed height, so only the width can change.
        return AnySize(model, image, size[0], _values(model, image, size, size[0]))
    if any(side % stride for side in size):
        # The image size is not a multiple of the stride, so the rules for cells do not apply to
        # this model.
        return AnySize(model, image, stride, {})
    refuse_scaled(model, size)
    problem: Unknown | None = None
    for each in (stride, 2 * stride):
        if all(side % each == 0 for side in size):
            try:
                return AnySize(model, image, each, _values(model, image, size, each))
            except Unknown as error:
                problem = problem or error
    raise UnsupportedModel(f"{problem}: {EXPORT}") from problem


def _values(
    model: onnx.ModelProto, image: TensorSpec, size: Size, stride: int
) -> dict[Place, Sized]:
    found: dict[Place, Sized] = {}
    constants, before = _constants(model), infer_shapes(model, image, size)
    other = another(size, stride)
    # Repeat this, because the values that a round finds may make the shapes of later nodes known.
    while True:
        now = infer_shapes(model, image, other, found)
        grid = Resizable(constants, before, now, size, other)
        new: dict[Place, Sized] = {}
        problem: Unknown | None = None
        for number, node in enumerate(model.graph.node):
            try:
                for slot, value in node_values(grid, node):
                    if (number, slot) not in found:
                        new[number, slot] = value
            except Unknown as error:
                problem = problem or error
        if not new:
            if problem is not None:
                raise problem
            return found
        found |= new


def another(size: Size, stride: int) -> Size:
    """Return an image size for the comparison with `size`.

    Both sides differ from `size`. Only a height that equals the stride, as in models for a line of
    text, stays the same.
    """
    height, width = size
    if height == stride:
        return height, width + 2 * stride
    if min(size) < 5 * stride:
        return height + stride, width + 2 * stride
    return height - stride, width - 2 * stride


def _constants(model: onnx.ModelProto) -> dict[str, Array]:
    """Return a mapping from the name of each constant to its value.

    Tensors that nodes compute only from constants are included.
    """
    found = {name: to_array(tensor) for name, tensor in constants_of(model).items()}
    known, nodes = {*found, ""}, []
    for node in model.graph.node:
        if node.input and known.issuperset(tensors_read(node)):
            nodes.append(node)
            known.update(node.output)
    if not nodes:
        return found
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = model.graph.name
    constant = [node for node in model.graph.node if node.op_type == "Constant"]
    bare.graph.node.extend([*constant, *nodes])
    bare.graph.initializer.extend(model.graph.initializer)
    names = [name for node in nodes for name in node.output if name]
    with onnxruntime_errors(
        lambda error: f"the constants of the model cannot be computed: {error}"
    ):
        values = open_plain(expose_tensors(bare, names)).run(names, {})
    return found | dict(zip(names, values, strict=True))


def infer_shapes(
    model: onnx.ModelProto,
    image: TensorSpec,
    size: Size,
    values: Mapping[Place, Sized] | None = None,
) -> Shapes:
    """Return a mapping from the name of each tensor to its shape for an image size.

    -1 means an unknown length.

    A dynamic batch counts as 1. `values` replace constants of the model.
    """
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.node.extend(model.graph.node)
    bare.graph.input.extend(model.graph.input)
    bare.graph.output.extend(model.graph.output)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    weights = list(model.graph.initializer)
    for (node, slot), sized in (values or {}).items():
        name = f"{node}.{slot}"
        weights.append(from_array(sized.at(size), name))
        bare.graph.node[node].input[slot] = name
    listed = {value.name for value in bare.graph.input}
    for tensor in weights:  # omit the values of large weights, to save time
        if prod(tensor.dims) <= _SMALL_WEIGHT:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in listed:
            bare.graph.input.append(
                make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    _set_sides(bare, image, size)
    batch = _value(bare, image.name).type.tensor_type.shape.dim[0]
    batch.dim_value = batch.dim_value or 1
    graph = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    return {
        value.name: tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def refuse_scaled(model: onnx.ModelProto, sides: Size) -> None:
    """Check that no constant contains the image size, e.g. to scale boxes or to resize maps.

    Raises:
        UnsupportedModel: a constant contains a side of the image, or its reciprocal.
    """
    old = [side for side in sides if side > 1]
    marks = {*old, *(1 / side for side in old)}
    constants = constants_of(model)
    for node in model.graph.node:
        if node.op_type not in _SIZED:
            continue
        at = _SIZED[node.op_type]
        for name in node.input if at is None else node.input[at : at + 1]:
            if name not in constants or prod(constants[name].dims) > _SMALL_CONSTANT:
                continue
            values = to_array(constants[name]).ravel().tolist()
            baked = [v for v in values if any(isclose(v, m, rel_tol=1e-6) for m in marks)]
            if baked:
                raise UnsupportedModel(
                    f"node {node.name or node.output[0]!r} ({node.op_type}) computes with "
                    f"{baked[0]:g}, which comes from the original size, {sides[0]}x{sides[1]}: "
                    f"{EXPORT}, or cut before that node with --output"
                )


def _run(model: onnx.ModelProto, image: TensorSpec, size: Size) -> None:
    shape = [length if length > 0 else 1 for length in image.shape]
    shape[_axis(image) : _axis(image) + 2] = size
    with onnxruntime_errors(
        lambda error: f"the model cannot run at {size[0]}x{size[1]} ({error}): {EXPORT}"
    ):
        open_plain(model.SerializeToString()).run(
            None, {image.name: np.zeros(shape, image.numpy_dtype)}
        )


def _common(before: tuple[int, ...], now: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return a shape with the lengths that are equal at both sizes, and -1 for other lengths."""
    if now is None or len(now) != len(before):
        return (-1,) * len(before)
    return tuple(n if n == m else -1 for n, m in zip(before, now, strict=True))


def _axis(image: TensorSpec) -> int:
    return 2 if image_layout(image) == "NCHW" else 1


def _value(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    found: onnx.ValueInfoProto = next(one for one in model.graph.input if one.name == name)
    return found


def _set_sides(model: onnx.ModelProto, image: TensorSpec, size: Size | None) -> None:
    dims = _value(model, image.name).type.tensor_type.shape.dim
    for i, name in enumerate(("height", "width")):
        dim = dims[_axis(image) + i]
        if size is None:
            dim.dim_param = name
        else:
            dim.dim_value = size[i]


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _refresh_shapes(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """Remove the shapes of inner tensors, and set the outputs' shapes, except a dynamic batch."""
    for value in model.graph.output:
        dims = value.type.tensor_type.shape.dim
        known = shapes.get(value.name, (-1,) * len(dims))
        for i, (dim, length) in enumerate(zip(dims, known, strict=False)):
            if i == 0 and not dim.dim_value:
                continue
            if length == -1:
                dim.dim_param = f"{value.name}_{i}"
            else:
                dim.dim_value = length
    del model.graph.value_info[:]
    return model
