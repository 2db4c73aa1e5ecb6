"""BYTES tensors on the wire: each element behind its length, 4 bytes, little-endian."""

from __future__ import annotations

import struct

import numpy as np

from fovea_engines.backends.base import Array
from fovea_preprocess.errors import InvalidRequest


def encode(array: Array) -> bytes:
    """The elements, objects of `bytes`, in row-major order."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        parts += (struct.pack("<I", len(element)), element)
    return b"".join(parts)


def decode(view: memoryview, count: int) -> Array:
    """`count` elements as a flat array of `bytes` objects.

    Raises:
        InvalidRequest: the lengths do not add up.
    """
    elements: list[bytes] = []
    at = 0
    while at + 4 <= len(view):
        (size,) = struct.unpack_from("<I", view, at)
        if at + 4 + size > len(view):
            break
        elements.append(bytes(view[at + 4 : at + 4 + size]))
        at += 4 + size
    if at != len(view) or len(elements) != count:
        raise InvalidRequest(f"expected {count} strings, got {len(elements)}")
    array = np.empty(count, object)
    array[:] = elements
    return array
