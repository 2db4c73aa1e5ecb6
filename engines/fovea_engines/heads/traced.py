"""Converts a head's NumPy code to nodes of an ONNX graph.

The code runs with arrays of the class `Traced`, which record each operation as a node (tracing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from fovea_engines.onnx_graph.writer import Writer

_OPERATORS: Mapping[Callable[..., Any], str] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.true_divide: "Div",
    np.exp: "Exp",
}


@dataclass(frozen=True, slots=True, eq=False)
class Traced(NDArrayOperatorsMixin):
    """Stands for a float32 array of one image. The graph computes it for all images of a batch.

    NumPy code uses this object like the array of one image, and each operation adds a node to the
    graph. Only the operations that heads need are implemented. Other operations raise TypeError.

    Attributes:
        write: writer of the graph's nodes.
        name: name of the tensor, whose shape is [batch, *shape].
        shape: shape of one image's array.
    """

    write: Writer
    name: str
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> Self:  # noqa: N802 - as numpy calls it
        """Return the transposed table. The array must have two dimensions."""
        return self._node("Transpose", self.shape[::-1], perm=[0, 2, 1])

    def reshape(self, *shape: int) -> Self:
        """Return the values in another shape; one length may be -1."""
        rest = prod(self.shape) // -prod(shape)
        known = tuple(rest if length == -1 else length for length in shape)
        return self._node("Reshape", known, np.array([0, *known]))

    def max(self, axis: int, keepdims: bool = False) -> Self:
        """Return the largest values along an axis."""
        return self._reduce("ReduceMax", axis, keepdims)

    def sum(self, axis: int, keepdims: bool = False) -> Self:
        """Return the sums along an axis."""
        return self._reduce("ReduceSum", axis, keepdims)

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Self:
        part = self
        for axis, one in enumerate(key if isinstance(key, tuple) else (key,), start=1):
            length = part.shape[axis - 1]
            chosen = range(length)[one]
            shape = (*part.shape[: axis - 1], len(chosen), *part.shape[axis:])
            if chosen.step != 1:
                part = part._node("Gather", shape, np.array(chosen), axis=axis)
            elif len(chosen) < length:
                ends = (np.array([end]) for end in (chosen.start, chosen.stop, axis))
                part = part._node("Slice", shape, *ends)
        return part

    def __matmul__(self, other: Any) -> Self:
        # Use Mul and not MatMul, because TensorRT cannot multiply float32 matrices on GPUs of the
        # Turing generation.
        product: Self = self * other
        return product.sum(axis=len(product.shape) - 1)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _OPERATORS:
            return NotImplemented
        taken = [self._operand(one) for one in operands]
        shape = np.broadcast_shapes(*(one.shape for one in taken))
        names = (one.name if isinstance(one, Traced) else one for one in taken)
        return type(self)(self.write, self.write(_OPERATORS[ufunc], *names), shape)

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, options: Mapping[str, Any]
    ) -> Any:
        if function is not np.concatenate:
            return NotImplemented
        return self._join(*arguments, **options)

    def _join(self, parts: Sequence[Traced], axis: int = 0) -> Self:
        if len(parts) == 1:
            return self
        shape = list(self.shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        joined = self.write("Concat", *(part.name for part in parts), axis=axis + 1)
        return type(self)(self.write, joined, tuple(shape))

    def _reduce(self, operator: str, axis: int, keepdims: bool) -> Self:
        shape = (*self.shape[:axis], *[1] * keepdims, *self.shape[axis + 1 :])
        return self._node(operator, shape, np.array([axis + 1]), keepdims=int(keepdims))

    def _node(self, operator: str, shape: tuple[int, ...], *operands: Any, **given: Any) -> Self:
        return type(self)(self.write, self.write(operator, self.name, *operands, **given), shape)

    @staticmethod
    def _operand(one: Any) -> Any:
        return one if isinstance(one, Traced) else np.asarray(one, np.float32)
