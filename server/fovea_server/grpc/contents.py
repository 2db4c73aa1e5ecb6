"""Reads tensors from the typed fields of a request.

Source: `InferTensorContents` of the protocol; the checks are those of Triton's infer_handler.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.datatypes import NUMPY

# The datatypes that a field may hold; the type of its elements comes first.
_TYPES = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}

# Elements read in one step: a longer step would block other threads.
_PIECE = 65_536


def contents_of(
    tensor: messages.ModelInferRequest.InferInputTensor, model: str
) -> memoryview | Array:
    """Read the elements of an input, flat.

    Args:
        tensor: an `InferInputTensor` that has contents.
        model: name for the message.

    Raises:
        InvalidRequest: they are in a field of another type, or in several; Triton's text.
    """
    data: memoryview | Array = memoryview(b"")
    taken = False
    for field, values in tensor.contents.ListFields():
        explicit = (
            f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}'"
        )
        if taken:
            raise InvalidRequest(f"{explicit}, binary data was already supplied.")
        types = _TYPES[field.name]
        if tensor.datatype not in types:
            sent = tensor.datatype if tensor.datatype in NUMPY else "<invalid>"
            raise InvalidRequest(f"{explicit} of type '{types[0]}', expected datatype '{sent}'")
        data, taken = _array(values, types[0], tensor.datatype), True
    return data


def _array(values: Sequence[int | float | bytes], carrier: str, datatype: str) -> Array:
    elements: Array = np.empty(len(values), NUMPY[carrier])
    for at in range(0, len(elements), _PIECE):
        elements[at : at + _PIECE] = np.fromiter(values[at : at + _PIECE], elements.dtype)
    # As Triton does, keep the low bytes of values that exceed a narrow type.
    return elements.astype(NUMPY[datatype], copy=False)
