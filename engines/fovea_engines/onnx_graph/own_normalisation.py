"""Recognises a normalisation of the image at the start of a model's graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from fovea_engines.heads.image_inputs import image_of
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.wiring import Wiring, constants_of

_ARITHMETIC = {"Sub": "subtracted", "Mul": "multiplied by", "Div": "divided by", "Add": "added"}
_FRONT = {*_ARITHMETIC, "Cast"}
_SHOWN = 3
# Limit of the factor by which a model scales its input. Models for inputs of 0 to 255 scale by 1/57
# or less; models for inputs of 0 to 1 scale by 1 or more.
_LARGEST_OF_BYTES = 0.1


def own_normalisation(model: onnx.ModelProto) -> Mapping[str, Any]:
    """Return `PreprocessSpec` fields for a model whose graph scales inputs of 0 to 255.

    These fields turn off the scaling on the host.

    The result is empty for all other models.
    """
    image = image_of(graph_inputs(model))
    front, _ = leading_arithmetic(model, image.name)
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


def leading_arithmetic(model: onnx.ModelProto, image: str) -> tuple[str, list[str]]:
    """Return the result of the arithmetic directly after the input, and a list of its operations.

    Returns:
        The name of the last tensor, which is `image` without any arithmetic, and a description of
        each operation, e.g. "divided by 255".
    """
    wiring = Wiring(model)
    constants = constants_of(model)
    last, operations = image, []
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
            operations.append(
                f"{_ARITHMETIC[node.op_type]} {shown}{' ...' * (len(numbers) > _SHOWN)}"
            )
    return last, operations
