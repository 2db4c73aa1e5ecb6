"""Tensors that travel element by element in the typed fields of a request.

Source: `InferTensorContents` of the protocol; the checks are those of Triton's infer_handler.cc.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.datatypes import NUMPY

# The types that may travel in a field; that of its own elements comes first.
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

# Elements that are taken together: single steps over more would keep other threads waiting.
_PIECE = 65_536


def contents_of(tensor: Any, model: str) -> memoryview | Array:
    """The elements of an input, flat.

    Args:
        tensor: an `InferInputTensor` that has contents.
        model: that it was sent to, for the message.

    Raises:
        InvalidRequest: they are in a field of another type, or in more than one; Triton's text.
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


def _array(values: Any, carrier: str, datatype: str) -> Array:
    elements: Array = np.empty(len(values), NUMPY[carrier])
    for at in range(0, len(elements), _PIECE):
        elements[at : at + _PIECE] = np.fromiter(values[at : at + _PIECE], elements.dtype)
    # Of what is too large for a narrow type Triton takes the low bytes, as this does.
    return elements.astype(NUMPY[datatype], copy=False)
