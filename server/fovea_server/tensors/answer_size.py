"""The bytes that a model's answer will have, before it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fovea_server.tensors.datatypes import NUMPY
from fovea_server.tensors.messages import InputTensor, OutputTensor
from fovea_server.tensors.signature import ModelSignature


class AnswerSize:
    """Expects each output as its signature says; one whose size varies, as it was the last time."""

    def __init__(self, signature: ModelSignature) -> None:
        self._most_rows = signature.max_batch_size
        self._fixed = 0
        self._varying: dict[str, int] = {}
        for tensor in signature.outputs:
            dims = tensor.shape[1:] if self._most_rows else tensor.shape
            if -1 in dims or tensor.datatype == "BYTES":
                self._varying[tensor.name] = 0
            else:
                self._fixed += prod(dims) * NUMPY[tensor.datatype].itemsize

    def expected(self, inputs: Sequence[InputTensor]) -> int:
        """Return the bytes of all outputs for these inputs, which nobody has checked yet."""
        size = self._fixed + sum(self._varying.values())
        return size * self._rows(inputs[0].shape) if self._most_rows and inputs else size

    def learn(self, outputs: Sequence[OutputTensor]) -> None:
        """Remember the sizes of an answer."""
        if not self._varying:
            return
        for tensor in outputs:
            if tensor.name in self._varying:
                rows = self._rows(tensor.shape) if self._most_rows else 1
                self._varying[tensor.name] = tensor.array.nbytes // max(rows, 1)

    def _rows(self, shape: tuple[int, ...]) -> int:
        return min(max(shape[0], 0), self._most_rows) if shape else 1
