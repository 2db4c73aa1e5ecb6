"""Reads a body that is one bare tensor; its name, type and shape are the model's."""

from __future__ import annotations

import struct
from math import prod

from fovea_preprocess.errors import InvalidRequest
from fovea_server.models.model import ServedModel
from fovea_server.tensors.datatypes import NUMPY
from fovea_server.tensors.messages import InputTensor


def raw_input(model: ServedModel, body: bytes | bytearray) -> InputTensor:
    """Make the input from the whole body.

    Raises:
        InvalidRequest: the model has several inputs, or the shape is ambiguous; Triton's text.
    """
    view = memoryview(body)
    signature = model.signature
    if len(signature.inputs) != 1:
        raise _refused(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{model.name}' model configuration"
        )
    expected = signature.inputs[0]
    batch, dims = ((1,), expected.shape[1:]) if signature.max_batch_size else ((), expected.shape)
    variable = [index for index, size in enumerate(dims) if size == -1]
    if len(variable) > 1:
        raise _refused(
            f"The shape of the raw input '{expected.name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    count = prod(size for size in dims if size != -1)
    if expected.datatype == "BYTES":
        if variable or count != 1:
            raise _refused(
                f"For BYTE datatype raw input '{expected.name}', the model must have input "
                "shape [1]"
            )
        view = memoryview(struct.pack("<I", len(body)) + bytes(body))
    shape = list(dims)
    for index in variable:
        shape[index] = len(body) // (count * NUMPY[expected.datatype].itemsize) if count else 0
    return InputTensor(expected.name, expected.datatype, (*batch, *shape), view)


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(f"[request id: <id_unknown>] {what}")
