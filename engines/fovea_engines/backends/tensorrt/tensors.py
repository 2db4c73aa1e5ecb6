"""Describes the tensors of an engine: NumPy dtypes, and sizes in GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fovea_engines.backends.tensorrt.runtime import dtype_name
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

# Types that NumPy has. TensorRT's other types occur only inside a network.
_SERVED = ("float32", "float16", "uint8", "int8", "int32", "int64", "bool")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of an engine.

    Attributes:
        name: name of the tensor.
        dtype: element type.
        row: shape of one row of a batch, or the whole shape if not `batched`.
        batched: True if the first dimension is the batch.
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
        """Return TensorRT's shape for a batch size; -1 means any batch size."""
        return (rows, *self.row) if self.batched else self.row

    @property
    def spec(self) -> TensorSpec:
        """Describe the tensor for callers.

        The batch dimension is -1, as batches are padded and split.
        """
        return TensorSpec(self.name, self.dtype.name, self.shape(-1))


def read_inputs(engine: Any, *, batched: bool) -> tuple[Tensor, ...]:
    """Return the inputs of an `ICudaEngine` in order.

    Dynamic dimensions other than the batch, e.g. the image size, get the optimum of the first
    profile, for which the engine was tuned.

    Raises:
        UnsupportedModel: the engine has no input.
    """
    inputs = tuple(
        _tensor(engine, name, _best_shape(engine, name), batched)
        for name in _names(engine, "INPUT")
    )
    if not inputs:
        raise UnsupportedModel("the engine has no input, so it cannot be served")
    return inputs


def read_outputs(engine: Any, context: Any, rows: int, *, batched: bool) -> tuple[Tensor, ...]:
    """Return the outputs. The input shapes of `context` must be set to the batch size `rows`.

    Raises:
        UnsupportedModel: the shape of an output is unknown before it runs, or has no batch
            dimension.
    """
    outputs = []
    for name in _names(engine, "OUTPUT"):
        shape = tuple(context.get_tensor_shape(name))
        if -1 in shape:
            raise UnsupportedModel(
                f"output {name!r} has shape {list(shape)}: its size depends on the number of "
                "detections. Build the engine from ONNX with `fovea build`, which gives it a "
                "fixed size"
            )
        if batched and shape[:1] != (rows,):
            raise UnsupportedModel(
                f"output {name!r} has shape {list(shape)} for a batch of {rows}: its first "
                "dimension must be the batch. Export the model so, and build it again"
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
        raise UnsupportedModel(f"tensor {name!r} is one number: it has no batch dimension")
    return Tensor(name, np.dtype(dtype), shape[1:] if batched else shape, batched)
