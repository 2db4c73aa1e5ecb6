"""Tensors in the protocol's binary form."""

from __future__ import annotations

import numpy as np

from fovea_server.tensors.byte_strings import encode
from fovea_server.tensors.messages import OutputTensor

# Below this size in bytes a copy is cheaper than a view.
_SMALL = 16_384
# Encoding this many strings takes a few milliseconds.
_MANY = 16_384


def wire(tensor: OutputTensor) -> bytes | memoryview:
    """Encode the elements in row-major order, little-endian; a large numeric tensor as a view.

    Elements of BYTES follow their lengths.
    """
    if tensor.datatype == "BYTES":
        if tensor.array.size <= _MANY:
            return encode(tensor.array)
        # In pieces, so that other threads can run between them.
        flat = tensor.array.ravel()
        return b"".join(encode(flat[at : at + _MANY]) for at in range(0, flat.size, _MANY))
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # As bytes, because a memoryview has no float16 and bfloat16.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data
