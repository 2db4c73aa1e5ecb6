"""Adds a normalisation to the input of a graph, or drops the one that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np
import onnx
from onnx import TensorProto
from onnx.numpy_helper import to_array

from fovea_engines.detect.heads.signature import image_layout
from fovea_engines.detect.size_values import image_of
from fovea_engines.graph.edit.cut import cut
from fovea_engines.graph.edit.edited import Edited, Values
from fovea_engines.graph.edit.names import rename
from fovea_engines.graph.edit.shapes import first_input
from fovea_engines.graph.tensors import graph_inputs
from fovea_engines.graph.wiring import Wiring, constants_of
from fovea_engines.graph.writer import Writer
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_ARITHMETIC = {"Sub": "subtracted", "Mul": "multiplied by", "Div": "divided by", "Add": "added"}
_FRONT = {*_ARITHMETIC, "Cast"}
_SHOWN = 3
# Between 1/57, the smallest divisor in use for values of 0 to 255, and 1 for those of 0 to 1.
_LARGEST_OF_BYTES = 0.1


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A value v becomes (v * scale - mean) / std; mean and std are one number, or one a channel."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse SCALE[,MEAN[,STD]], such as "1/255,0.485:0.456:0.406,0.229:0.224:0.225"."""
        try:
            parts = [tuple(map(_number, part.split(":"))) for part in text.split(",")]
            [[scale], mean, std] = parts + [(0.0,), (1.0,)][len(parts) - 1 :]
        except (ValueError, ZeroDivisionError) as error:
            raise InvalidOption(
                f"normalisation is {text!r}; write SCALE[,MEAN[,STD]], one number each or one a "
                "channel: 1/255, or 1/255,0.485:0.456:0.406,0.229:0.224:0.225"
            ) from error
        if scale == 0 or 0 in std:
            raise InvalidOption(f"normalisation is {text!r}: scale and std must not be 0")
        return cls(scale, mean, std)


def add_normalisation(
    model: onnx.ModelProto, wanted: Normalisation, *, uint8: bool = False
) -> Edited:
    """Let a model normalise its first input, which takes 0 to 255 as floats, or as uint8.

    Raises:
        InvalidOption: mean or std has another number of channels than the input.
        UnsupportedModel: the input is not of float32 or float16.
    """
    image = first_input(model)
    if image.dtype not in ("float32", "float16"):
        raise UnsupportedModel(
            f"input {image.name} is of {image.dtype}: a normalisation can be added to float32 and "
            "float16; drop the one that is there with --drop-normalise"
        )
    # (v - mean / scale) / (std / scale): 255 is exact in float32, and 1 / 255 is not.
    mean, std = (_per_channel(image, n) / wanted.scale for n in (wanted.mean, wanted.std))
    mean, std = mean.astype(np.float32), std.astype(np.float32)
    inner = f"{image.name}/normalised"
    result = rename(model, {image.name: inner}).model
    [value] = (v for v in result.graph.input if v.name == inner)
    value.name = image.name
    if uint8:
        value.type.tensor_type.elem_type = TensorProto.UINT8
    write = Writer(image.name)
    # Float16 holds 0 to 255, but not every normalised value.
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

    def raw(cooked: Array) -> Array:
        values = cooked.astype(np.float32) * std + mean
        return (
            values.round().clip(0, 255).astype(np.uint8) if uint8 else values.astype(cooked.dtype)
        )

    def cooked(raw: Array) -> Array:
        return ((raw.astype(np.float32) - mean) / std).astype(image.dtype)

    kind = "uint8" if uint8 else image.dtype
    told = f"normalise: {image.name} takes 0 to 255 as {kind}"
    return Edited(result, told, values={image.name: Values(raw, cooked)})


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
            "give one, or three for an image of three channels"
        )
    return np.array(numbers).reshape((3, 1, 1) if layout == "NCHW" else (3,))


def drop_normalisation(model: onnx.ModelProto) -> Edited:
    """Remove the arithmetic with constants with which a model begins; its input takes the result.

    Raises:
        UnsupportedModel: there is none before anything else is done with the input.
    """
    image = first_input(model).name
    front, told = _front(model, image)
    if not told:
        first = next(node for node in model.graph.node if image in node.input)
        raise UnsupportedModel(
            f"input {image} goes into {first.op_type} {first.name!r}, and not into Sub, Mul, Div "
            "or Add with constants: a normalisation that is folded into weights cannot be dropped"
        )
    others = [spec.name for spec in graph_inputs(model)[1:]]
    bare = cut(model, [front, *others], []).model
    # The name is free, as nothing else read the input.
    result = rename(bare, {front: image}).model
    return Edited(result, f"drop normalisation: {', '.join(told)}", {image: front})


def own_normalisation(model: onnx.ModelProto) -> Mapping[str, Any]:
    """Return the fields of `PreprocessSpec` for a model that itself divides 0 to 255 by much.

    Empty for a model that begins with anything else.
    """
    image = image_of(graph_inputs(model))
    front, _ = _front(model, image.name)
    if not image.dtype.startswith("float"):
        return {}
    wiring, constants, gain = Wiring(model), constants_of(model), 1.0
    while front != image.name:
        node = wiring.producer[front]
        for name in node.input:
            if name in constants and node.op_type in ("Mul", "Div"):
                factor = float(np.abs(to_array(constants[name])).mean())
                gain = gain * factor if node.op_type == "Mul" else gain / factor
        front = next(name for name in node.input if name not in constants)
    if gain >= _LARGEST_OF_BYTES:
        return {}
    return {"scale": 1.0, "mean": (0.0,) * 3, "std": (1.0,) * 3}


def _front(model: onnx.ModelProto, image: str) -> tuple[str, list[str]]:
    """Return the last tensor of the arithmetic that follows the input, and what it does."""
    wiring = Wiring(model)
    constants = constants_of(model)
    last, told = image, []
    while last not in wiring.outputs and len(wiring.consumers[last]) == 1:
        [node] = wiring.consumers[last]
        fixed = [name for name in node.input if name in constants]
        turned = node.op_type in ("Sub", "Div") and node.input[0] != last
        if node.op_type not in _FRONT or len(fixed) != len(node.input) - 1 or turned:
            break
        last = node.output[0]
        if fixed:
            numbers = list(dict.fromkeys(to_array(constants[fixed[0]]).ravel().tolist()))
            shown = " ".join(f"{n:.5g}" for n in numbers[:_SHOWN])
            told.append(f"{_ARITHMETIC[node.op_type]} {shown}{' ...' * (len(numbers) > _SHOWN)}")
    return last, told
