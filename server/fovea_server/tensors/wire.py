"""Tensors in the protocol's binary form."""

from __future__ import annotations

import numpy as np

from fovea_server.tensors.byte_strings import encode
from fovea_server.tensors.messages import OutputTensor

# Below this a copy is cheaper than a view.
_SMALL = 16_384
# Strings that take a few milliseconds to encode.
_MANY = 16_384


def wire(tensor: OutputTensor) -> bytes | memoryview:
    """The elements in row-major order, little-endian; of a large tensor of numbers a view.

    Elements of BYTES have their lengths before them.
    """
    if tensor.datatype == "BYTES":
        if tensor.array.size <= _MANY:
            return encode(tensor.array)
        # In pieces, so that other threads get their turn.
        flat = tensor.array.ravel()
        return b"".join(encode(flat[at : at + _MANY]) for at in range(0, flat.size, _MANY))
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # As bytes, because a memoryview knows no half or brain floats.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data
