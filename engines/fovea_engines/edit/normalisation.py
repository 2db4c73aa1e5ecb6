"""Adds a normalisation after the input of a graph, or removes the existing normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Self

import numpy as np
import onnx
from onnx import TensorProto

from fovea_engines.edit.cut import cut
from fovea_engines.edit.edited import Conversion, Edited, first_input
from fovea_engines.edit.names import rename
from fovea_engines.heads.signature import image_layout
from fovea_engines.onnx_graph.own_normalisation import leading_arithmetic
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A normalisation that converts a value v to (v * scale - mean) / std.

    `mean` and `std` have one number for all channels, or one number for each channel.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse SCALE[,MEAN[,STD]], such as "1/255,0.485:0.456:0.406,0.229:0.224:0.225".

        Raises:
            InvalidOption: the text is not a normalisation.
        """
        try:
            parts = [tuple(map(_number, part.split(":"))) for part in text.split(",")]
            [[scale], mean, std] = parts + [(0.0,), (1.0,)][len(parts) - 1 :]
        except (ValueError, ZeroDivisionError) as error:
            raise InvalidOption(
                f"normalisation is {text!r}, but must be SCALE[,MEAN[,STD]] with one number for "
                "each, or one per channel: 1/255, or 1/255,0.485:0.456:0.406,0.229:0.224:0.225"
            ) from error
        if scale == 0 or 0 in std:
            raise InvalidOption(f"normalisation is {text!r}: scale and std must not be 0")
        return cls(scale, mean, std)


def add_normalisation(
    model: onnx.ModelProto, wanted: Normalisation, *, uint8: bool = False
) -> Edited:
    """Add a normalisation after the first input of a model.

    The input then accepts values of 0 to 255, as floats, or as uint8 if `uint8` is True.

    Raises:
        InvalidOption: the number of values in mean or std is neither 1 nor the number of channels.
        UnsupportedModel: the element type of the input is neither float32 nor float16.
    """
    image = first_input(model)
    if image.dtype not in ("float32", "float16"):
        raise UnsupportedModel(
            f"input {image.name} has the type {image.dtype}, but a normalisation can only be "
            "added to float32 and float16: remove the existing one with --drop-normalize"
        )
    # Compute (v - mean / scale) / (std / scale). This divides by 255 instead of multiplying by 1 /
    # 255, for example: float32 holds 255 exactly, but not 1 / 255.
    mean, std = (_per_channel(image, n) / wanted.scale for n in (wanted.mean, wanted.std))
    mean, std = mean.astype(np.float32), std.astype(np.float32)
    inner = f"{image.name}/normalised"
    result = rename(model, {image.name: inner}).model
    [value] = (v for v in result.graph.input if v.name == inner)
    value.name = image.name
    if uint8:
        value.type.tensor_type.elem_type = TensorProto.UINT8
    write = Writer(image.name)
    # Compute in float32, because float16 would round the normalised values too early.
    row = image.name
    if uint8 or image.dtype != "float32":
        row = write.cast(row, "float32")
    row = write("Div", write("Sub", row, mean) if mean.any() else row, std)
    if image.dtype != "float32":
        row = write.cast(row, image.dtype)
    write.name(inner)
    result.graph.initializer.extend(write.constants)
    for node in reversed(write.nodes):
        result.graph.node.insert(0, node)

    def to_edited(values: Array) -> Array:
        levels = values.astype(np.float32) * std + mean
        return (
            levels.round().clip(0, 255).astype(np.uint8) if uint8 else levels.astype(values.dtype)
        )

    def to_original(levels: Array) -> Array:
        return ((levels.astype(np.float32) - mean) / std).astype(image.dtype)

    kind = "uint8" if uint8 else image.dtype
    change = f"normalise: {image.name} accepts 0 to 255 as {kind}"
    return Edited(result, change, values={image.name: Conversion(to_edited, to_original)})


def _number(text: str) -> float:
    value, _, divisor = text.partition("/")
    number = float(value) / float(divisor or 1)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _per_channel(image: TensorSpec, numbers: Sequence[float]) -> Array:
    if len(numbers) == 1:
        return np.array(numbers[0])
    layout = image_layout(image)
    if layout is None or len(numbers) != 3:
        raise InvalidOption(
            f"{len(numbers)} numbers do not fit input {image.name} of shape {list(image.shape)}: "
            "give one number, or three for an image of three channels"
        )
    return np.array(numbers).reshape((3, 1, 1) if layout == "NCHW" else (3,))


def drop_normalisation(model: onnx.ModelProto) -> Edited:
    """Remove the arithmetic with constants directly after the input of a model.

    The input then accepts the result of this arithmetic.

    Raises:
        UnsupportedModel: the model does not begin with such arithmetic.
    """
    image = first_input(model).name
    front, operations = leading_arithmetic(model, image)
    if not operations:
        first = next(node for node in model.graph.node if image in node.input)
        raise UnsupportedModel(
            f"input {image} is read by {first.op_type} {first.name!r}, and not by Sub, Mul, Div "
            "or Add with constants: a normalisation that is part of the weights cannot be removed"
        )
    others = [spec.name for spec in graph_inputs(model)[1:]]
    bare = cut(model, [front, *others], []).model
    # The cut graph does not have the original input, so its name can be used again.
    result = rename(bare, {front: image}).model
    return Edited(result, f"drop normalisation: {', '.join(operations)}", {image: front})
