"""Creates ONNX nodes by function calls, e.g. `write("Add", a, b)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node, np_dtype_to_tensor_dtype
from onnx.numpy_helper import from_array

Operand = str | NDArray[Any]


class Writer:
    """Creates nodes for a graph. The output of a node is named STEM/OPERATOR_NUMBER.

    A call of the writer takes an operator and its operands: names of tensors, or arrays as
    constants. The call returns the name of the output. Each writer for the same graph needs its own
    stem, usually the name of a tensor.
    """

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, operator: str, *operands: Operand, **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        return self._add(operator, operands, 1, attributes)[0]

    def split(self, tensor: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Split a tensor along an axis into parts of the given sizes, and return their names."""
        return self._add("Split", (tensor, np.array(sizes)), len(sizes), {"axis": axis})

    def top(self, tensor: str, count: int) -> tuple[str, str]:
        """Return the names of the `count` largest values along the last axis and of their indices.

        The values are sorted, the largest first.
        """
        values, indices = self._add("TopK", (tensor, np.array([count])), 2, {"axis": -1})
        return values, indices

    def cast(self, tensor: str, dtype: str) -> str:
        """Cast a tensor to another element type, and return the result's name.

        `dtype` is NumPy's name of the element type.
        """
        return self("Cast", tensor, to=np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def name(self, tensor: str) -> None:
        """Rename the output of the last node."""
        self.nodes[-1].output[0] = tensor

    def _add(
        self, operator: str, operands: Sequence[Operand], outputs: int, attributes: dict[str, Any]
    ) -> list[str]:

        name = f"{self._stem}/{operator}_{len(self.nodes)}"
        inputs = [self._tensor(operand) for operand in operands]
        made = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(make_node(operator, inputs, made, name, **attributes))
        return made

    def _tensor(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        name = f"{self._stem}/constant_{len(self.constants)}"
        self.constants.append(from_array(operand, name))
        return name
