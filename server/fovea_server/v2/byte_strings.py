"""BYTES tensors on the wire: each element behind its length, 4 bytes, little-endian.

The texts of errors are those of Triton's core (`ValidateBytesInputs`) and its backends.
"""

from __future__ import annotations

import struct

import numpy as np

from fovea_engines.backends.base import Array
from fovea_preprocess.errors import InvalidRequest

_LENGTH = struct.Struct("<I")


def encode(array: Array) -> bytes:
    """The elements, objects of `bytes`, in row-major order."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def decode(view: memoryview, count: int, what: str = "the tensor") -> Array:
    """`count` elements as a flat array of `bytes` objects.

    Args:
        view: the wire's form.
        count: how many elements the tensor's shape has.
        what: whose they are, for messages.

    Raises:
        InvalidRequest: there are more or fewer, or the last one is cut off.
    """
    elements: list[bytes] = []
    at, end = 0, len(view)
    while at < end:
        if end - at < _LENGTH.size:
            raise InvalidRequest("element byte size indicator exceeds the end of the buffer.")
        (size,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if size > end - at and len(elements) < count:
            raise InvalidRequest(
                f"incomplete string data for {what}, expecting string of length {size} but only "
                f"{end - at} bytes available"
            )
        elements.append(bytes(view[at : at + size]))
        at += size
        if len(elements) > count:
            break
    check_count(len(elements), count, what)
    array = np.empty(count, object)
    array[:] = elements
    return array


def check_count(got: int, count: int, what: str) -> None:
    """Compare the number of elements with the one that the tensor's shape has.

    Raises:
        InvalidRequest: they differ.
    """
    if got < count:
        raise InvalidRequest(f"expected {count} string elements for {what}, got {got}")
    if got > count:
        # Triton stops at the first one too many.
        raise InvalidRequest(
            f"unexpected number of string elements {count + 1} for {what}, expecting {count}"
        )
