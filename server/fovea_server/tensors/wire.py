"""Tensors in the protocol's binary form."""

from __future__ import annotations

import numpy as np

from fovea_server.tensors.byte_strings import encode
from fovea_server.tensors.messages import OutputTensor

# Below this size in bytes a copy is cheaper than a view.
_SMALL = 16_384


def wire(tensor: OutputTensor) -> bytes | memoryview:
    """Encode the elements in row-major order, little-endian; a large numeric tensor as a view.

    Elements of BYTES follow their lengths.
    """
    if tensor.datatype == "BYTES":
        return encode(tensor.array)
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # As bytes, because a memoryview has no float16 and bfloat16.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data
