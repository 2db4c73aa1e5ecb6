"""Changes the size of the images that a graph takes."""

from __future__ import annotations

from math import isclose, prod

import onnx
from onnx.numpy_helper import to_array

from fovea_engines.detect.heads.metadata import largest_stride
from fovea_engines.detect.heads.signature import image_layout, image_sides
from fovea_engines.graph.edit.constants import constants_of
from fovea_engines.graph.edit.edited import Edited, copied
from fovea_engines.graph.edit.shapes import first_input, refresh
from fovea_engines.graph.tensors import metadata_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_FEW = 8
# Operators, and the input that can hold the size of an image; None where any can.
_SIZED: dict[str, int | None] = {
    "Resize": 3,
    "Expand": 1,
    "ConstantOfShape": 0,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Min", "Max", "Clip")),
}


def set_size(model: onnx.ModelProto, size: tuple[int, int]) -> Edited:
    """Set (height, width) of the first input, in pixels, and in the metadata's `imgsz`.

    Constants whose shape does not fit any more show when the model is run. Those that would fit
    and be wrong are looked for here.

    Raises:
        InvalidOption: the metadata has a stride that does not divide the size.
        UnsupportedModel: the input takes no image, or a constant is of the size there was.
    """
    image = first_input(model)
    layout = image_layout(image)
    if layout is None:
        raise UnsupportedModel(
            f"input {image.name} of shape {list(image.shape)} takes no image: a size is set where "
            "it is [batch, 3, height, width] or [batch, height, width, 3]"
        )
    metadata = metadata_of(model)
    stride = largest_stride(metadata) if "stride" in metadata else 1
    if any(side < 1 or side % stride for side in size):
        raise InvalidOption(
            f"size {size[0]}x{size[1]}: both sides must be multiples of {stride}, the stride that "
            "the model's metadata states"
        )
    _refuse_baked(model, image_sides(image))
    result = copied(model)
    [value] = (v for v in result.graph.input if v.name == image.name)
    first = 2 if layout == "NCHW" else 1
    for dim, length in zip(value.type.tensor_type.shape.dim[first:], size, strict=False):
        dim.dim_value = length
    refresh(result)
    for entry in result.metadata_props:
        if entry.key == "imgsz":
            entry.value = str(list(size))
    return Edited(
        result,
        f"size: {image.name} takes {size[0]}x{size[1]}",
        advice="its constants (a grid, anchors) are of the size there was, or the model's stride "
        "does not divide the new one; export the model with the new size, or with a dynamic one",
    )


def _refuse_baked(model: onnx.ModelProto, sides: tuple[int, int]) -> None:
    """Refuse constants that are the old size, by which boxes are scaled or maps resized."""
    old = [side for side in sides if side > 1]
    marks = {*old, *(1 / side for side in old)}
    constants = constants_of(model)
    for node in model.graph.node:
        if node.op_type not in _SIZED:
            continue
        at = _SIZED[node.op_type]
        for name in node.input if at is None else node.input[at : at + 1]:
            if name not in constants or prod(constants[name].dims) > _FEW:
                continue
            values = to_array(constants[name]).ravel().tolist()
            baked = [v for v in values if any(isclose(v, m, rel_tol=1e-6) for m in marks)]
            if baked:
                raise UnsupportedModel(
                    f"node {node.name or node.output[0]!r} ({node.op_type}) computes with "
                    f"{baked[0]:g}, which is of the size there was, {sides[0]}x{sides[1]}: export "
                    "the model with the new size, or cut before that node with --output"
                )
