"""Checks a request against its model, with Triton's error texts in Triton's order.

Source: `InferenceRequest::Normalize` of Triton's core. If several inputs are wrong, Triton reports
the last one first, because its map iterates backwards. This module does the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.messages import InferRequest, InputTensor
from fovea_server.tensors.signature import ModelSignature, ModelTensor, shape_text
from fovea_server.tensors.wire import NUMPY, check_count, decode_strings

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


def request_prefix(request: InferRequest) -> str:
    """Return the prefix that Triton puts before most error texts about a request."""
    return f"[request id: {request.id or '<id_unknown>'}] "


@dataclass(slots=True, eq=False)
class CheckedRequest:
    """A request that fits its model.

    Attributes:
        feeds: dict from the name of each input to its array, in the engine's shape. Arrays are
            views of the request, except for BYTES.
        rows: batch size; 1 if the model has no batch dimension.
    """

    feeds: dict[str, Array]
    rows: int


class RequestCheck:
    """Checks requests against one model."""

    def __init__(self, model: str, signature: ModelSignature) -> None:
        self._model = model
        self._max_batch_size = signature.max_batch_size
        self._inputs = {tensor.name: tensor for tensor in signature.inputs}
        self._outputs = frozenset(tensor.name for tensor in signature.outputs)
        self._required = sum(not tensor.optional for tensor in signature.inputs)

    def __call__(self, request: InferRequest) -> CheckedRequest:
        """Return the arrays of a request.

        Raises:
            InvalidRequest: the request does not fit the model.
        """
        inputs = request.inputs
        for output in request.outputs:
            if output.name not in self._outputs:
                raise InvalidRequest(
                    f"unexpected inference output '{output.name}' for model '{self._model}'"
                )
        try:
            self._check_number(inputs)
        except InvalidRequest as error:
            raise InvalidRequest(f"{request_prefix(request)}{error}") from None
        for tensor in inputs:
            if tensor.name not in self._inputs:
                raise InvalidRequest(
                    f"unexpected inference input '{tensor.name}' for model '{self._model}'"
                )
        try:
            rows = self._rows(inputs)
            feeds = {t.name: self._array(self._inputs[t.name], t, rows) for t in reversed(inputs)}
        except InvalidRequest as error:
            raise InvalidRequest(f"{request_prefix(request)}{error}") from None
        return CheckedRequest(feeds, rows or 1)

    def _check_number(self, inputs: Sequence[InputTensor]) -> None:
        given = {tensor.name for tensor in inputs}
        if len(given) != len(inputs):
            names = [tensor.name for tensor in inputs]
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise InvalidRequest(f"input '{twice}' already exists in request")
        most, least = len(self._inputs), self._required
        if least <= len(inputs) <= most:
            return
        expected = f"{most} inputs"
        if least != most:
            expected = f"number of inputs between {least} and {most}"
        missing = [t.name for t in self._inputs.values() if not t.optional and t.name not in given]
        raise InvalidRequest(
            f"expected {expected} but got {len(inputs)} inputs for model '{self._model}'. "
            f"Got input(s) {_names([t.name for t in reversed(inputs)]) or '[]'}, but missing "
            # If no input is missing, Triton's text has "]" without "[".
            f"required input(s) {_names(missing) or ']'}. Please provide all required input(s)."
        )

    def _rows(self, inputs: Sequence[InputTensor]) -> int | None:
        """Return the batch size, or None if the model has no batch dimension."""
        if not self._max_batch_size:
            return None
        rows: int | None = None
        for tensor in reversed(inputs):
            if not tensor.shape:
                raise InvalidRequest(
                    f"input '{tensor.name}' has no shape but model requires batch dimension for "
                    f"'{self._model}'"
                )
            if rows is None:
                rows = tensor.shape[0]
            elif tensor.shape[0] != rows:
                raise InvalidRequest(
                    f"input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self._model}'"
                )
        # Reject a negative number like a number that is too large, because Triton's batch size is
        # unsigned.
        if rows is not None and not 0 <= rows <= self._max_batch_size:
            raise InvalidRequest(
                f"inference request batch-size must be <= {self._max_batch_size} for "
                f"'{self._model}'"
            )
        if rows == 0:
            raise InvalidRequest(f"inference request batch-size must be >= 1 for '{self._model}'")
        return rows

    def _array(self, expected: ModelTensor, tensor: InputTensor, rows: int | None) -> Array:
        name, model = tensor.name, self._model
        if tensor.datatype != expected.datatype:
            sent = tensor.datatype if tensor.datatype in NUMPY else "<invalid>"
            raise InvalidRequest(
                f"inference input '{name}' data-type is '{sent}', but model '{model}' expects "
                f"'{expected.datatype}'"
            )
        shape = self._engine_shape(expected, tensor)
        if rows is not None:
            shape = (rows, *shape)
        count = prod(shape)
        dtype, data = NUMPY[tensor.datatype], tensor.data
        if tensor.datatype == "BYTES":
            data = self._strings(tensor, count)
        elif data.nbytes != count * dtype.itemsize:
            raise InvalidRequest(
                f"input byte size mismatch for input '{name}' for model '{model}'. Expected "
                f"{count * dtype.itemsize}, got {data.nbytes}"
            )
        try:
            if isinstance(data, memoryview):
                return np.ndarray(shape, dtype, data)
            return data.reshape(shape)
        except ValueError:
            # Only a tensor without elements gets here: NumPy rejects its shape if another dimension
            # is too large.
            raise InvalidRequest(
                f"the shape {shape_text(tensor.shape)} of input '{name}' for model '{model}' is "
                "too large; send the shape of the data"
            ) from None

    def _strings(self, tensor: InputTensor, count: int) -> Array:
        what = f"inference input '{tensor.name}' for model '{self._model}'"
        if isinstance(tensor.data, memoryview):
            return decode_strings(tensor.data, count, what)
        check_count(len(tensor.data), count, what)
        return tensor.data

    def _engine_shape(self, expected: ModelTensor, tensor: InputTensor) -> tuple[int, ...]:
        """Return the engine's shape for an input. Both shapes are without the batch dimension."""
        batched = self._max_batch_size > 0
        have = tensor.shape[1:] if batched else tensor.shape
        want = expected.shape[1:] if batched else expected.shape
        if have != want or -1 in want:
            self._check_shape(want, have, tensor)
        shape = have if expected.reshape is None else reshape_dims(want, have, expected.reshape)
        if expected.sides is not None and not expected.sides.hold(shape[-3:]):
            raise InvalidRequest(
                f"unexpected shape for input '{tensor.name}' for model '{self._model}'. Its height "
                f"and width must be {expected.sides}, got {shape_text(tensor.shape)}"
            )
        return shape

    def _check_shape(
        self, want: tuple[int, ...], have: tuple[int, ...], tensor: InputTensor
    ) -> None:
        fits = len(want) == len(have)
        for size, sent in zip(want, have, strict=False):
            if not fits:
                break
            if sent < 0 and size in (-1, sent):
                raise InvalidRequest(
                    f"All input dimensions should be specified for input '{tensor.name}' for model "
                    f"'{self._model}', got {shape_text(tensor.shape)}"
                )
            fits = size in (-1, sent)
        if not fits:
            batched = self._max_batch_size > 0
            full = (-1, *want) if batched else want
            raise InvalidRequest(
                f"unexpected shape for input '{tensor.name}' for model '{self._model}'. Expected "
                f"{shape_text(full)}, got {shape_text(tensor.shape)}. "
                f"{BATCH_NOTE if batched else ''}"
            )


def reshape_dims(
    dims: tuple[int, ...], have: tuple[int, ...], reshape: tuple[int, ...]
) -> tuple[int, ...]:
    """Apply the `reshape` of config.pbtxt to a shape.

    Args:
        dims: shape in the configuration; -1 for a variable size.
        have: shape in the request, which fits `dims`.
        reshape: shape for the engine. Each -1 in it is replaced by the next size of `have` that is
            variable in `dims`.
    """
    variable = deque(sent for size, sent in zip(dims, have, strict=True) if size == -1)
    return tuple(variable.popleft() if size == -1 else size for size in reshape)


def _names(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]" if names else ""
