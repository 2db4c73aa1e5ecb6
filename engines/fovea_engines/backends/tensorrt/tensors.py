"""Describes the inputs and outputs of an engine: NumPy dtypes, shapes, and sizes in GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fovea_engines.backends.tensorrt.runtime import dtype_name
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

# Element types of inputs and outputs that Fovea supports. NumPy has no other type of TensorRT.
_SERVED = ("float32", "float16", "uint8", "int8", "int32", "int64", "bool")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of an engine.

    Attributes:
        name: name of the tensor.
        dtype: element type.
        row: shape without the batch dimension; the whole shape if `batched` is False.
        batched: True if the first dimension of the tensor is the batch.
    """

    name: str
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    batched: bool

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes."""
        return prod(self.row) * self.dtype.itemsize

    def shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape in TensorRT for a batch size. -1 means a dynamic batch size."""
        return (rows, *self.row) if self.batched else self.row

    @property
    def spec(self) -> TensorSpec:
        """Return the tensor's specification for callers of the session.

        The batch dimension is -1, because the session pads and splits batches.
        """
        return TensorSpec(self.name, self.dtype.name, self.shape(-1))


def read_inputs(engine: Any, *, batched: bool) -> tuple[Tensor, ...]:
    """Return the inputs of an `ICudaEngine`, in the engine's order.

    A dynamic dimension other than the batch, e.g. the image height, gets the optimum length of the
    first profile. TensorRT optimised the engine for this length.

    Raises:
        UnsupportedModel: the engine has no input, or an input has an unsupported type, location or
            memory format.
    """
    inputs = tuple(
        _tensor(engine, name, _best_shape(engine, name), batched)
        for name in _names(engine, "INPUT")
    )
    if not inputs:
        raise UnsupportedModel("the engine has no input, so it cannot be served")
    return inputs


def read_outputs(engine: Any, context: Any, rows: int, *, batched: bool) -> tuple[Tensor, ...]:
    """Return the outputs of an `ICudaEngine`, in the engine's order.

    `context` is an execution context whose input shapes are set to the batch size `rows`.

    Raises:
        UnsupportedModel: an output has no batch dimension, an unsupported type or memory format, or
            a shape that is unknown before a run.
    """
    outputs = []
    for name in _names(engine, "OUTPUT"):
        shape = tuple(context.get_tensor_shape(name))
        if -1 in shape:
            raise UnsupportedModel(
                f"output {name!r} has shape {list(shape)}: its size depends on the number of "
                "detections. Build the engine from ONNX with `fovea build`, which gives the "
                "output a fixed size"
            )
        if batched and shape[:1] != (rows,):
            raise UnsupportedModel(
                f"output {name!r} has shape {list(shape)} for a batch of {rows}: its first "
                "dimension must be the batch. Export the model again with this layout, then build "
                "it"
            )
        outputs.append(_tensor(engine, name, shape, batched))
    return tuple(outputs)


def _names(engine: Any, mode: str) -> Iterator[str]:
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_mode(name).name == mode:
            yield name


def _best_shape(engine: Any, name: str) -> tuple[int, ...]:
    shape = tuple(engine.get_tensor_shape(name))
    return tuple(engine.get_tensor_profile_shape(name, 0)[1]) if -1 in shape else shape


def _tensor(engine: Any, name: str, shape: tuple[int, ...], batched: bool) -> Tensor:
    dtype = dtype_name(engine.get_tensor_dtype(name))
    if dtype not in _SERVED:
        raise UnsupportedModel(
            f"tensor {name!r} is {dtype}; inputs and outputs must be one of {', '.join(_SERVED)}: "
            "build the engine again with one of these types"
        )
    if engine.get_tensor_location(name).name != "DEVICE":
        raise UnsupportedModel(
            f"tensor {name!r} is a shape tensor, which TensorRT reads on the CPU: export the "
            "model with a fixed image size, and build it again"
        )
    if engine.get_tensor_format(name).name != "LINEAR":
        raise UnsupportedModel(
            f"tensor {name!r} is not in row-major order: build the engine again without "
            "--inputIOFormats and --outputIOFormats"
        )
    if batched and not shape:
        raise UnsupportedModel(
            f"tensor {name!r} is a scalar without a batch dimension: export the model with a "
            "batch dimension for each input and output"
        )
    return Tensor(name, np.dtype(dtype), shape[1:] if batched else shape, batched)
