"""The binary form of tensors in the protocol, and the names of datatypes.

Source: "Tensor Data Types" of the Open Inference Protocol, and `DataType` of model_config.proto. In
the binary form, the length of each BYTES element precedes the element. The error texts come from
Triton's core (`ValidateBytesInputs`) and backends.
"""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.messages import OutputTensor

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{
        f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}")
        for kind in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    # Elements are `bytes` objects.
    "BYTES": np.dtype(object),
}
"""Maps the protocol's datatype names to NumPy's dtypes."""

NAMES = {dtype: name for name, dtype in NUMPY.items()}
"""Maps NumPy's dtypes to the protocol's datatype names."""

# Size in bytes. Smaller tensors are copied, because that is cheaper than a view.
_SMALL = 16_384
# Format of the length of a BYTES element: 4 bytes, little-endian.
_LENGTH = struct.Struct("<I")
# Number of elements that are converted in one step, which takes a few milliseconds. A longer step
# would block other threads.
_PIECE = 16_384


def wire(tensor: OutputTensor) -> bytes | memoryview:
    """Encode a tensor in row-major order, little-endian.

    A large numeric tensor is returned as a view. The length of each BYTES element precedes the
    element.
    """
    if tensor.datatype == "BYTES":
        return encode_strings(tensor.array)
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # View the elements as uint8, because memoryview supports neither float16 nor bfloat16.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data


def encode_strings(array: Array) -> bytes:
    """Encode `bytes` objects in row-major order.

    The length of each element precedes the element.
    """
    flat = array.ravel()
    pieces = [_encode(flat[at : at + _PIECE]) for at in range(0, flat.size, _PIECE)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _encode(flat: Array) -> bytes:
    parts: list[bytes] = []
    for element in flat.tolist():
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def decode_strings(view: memoryview, count: int, what: str = "the tensor") -> Array:
    """Decode BYTES elements into a 1-D array of `bytes` objects.

    Args:
        view: encoded elements.
        count: required number of elements in `view`.
        what: name of the tensor in error texts.

    Raises:
        InvalidRequest: the number of elements is not `count`, or the last element is incomplete.
    """
    pieces: list[Array] = []
    at, end, got = 0, len(view), 0
    while at < end and got <= count:
        elements, at = _decode(view, at, count + 1 - got, what)
        got += len(elements)
        piece = np.empty(len(elements), object)
        piece[:] = elements
        pieces.append(piece)
    check_count(got, count, what)
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, object)


def _decode(view: memoryview, at: int, most: int, what: str) -> tuple[list[bytes], int]:
    """Decode up to `most` elements, and return them with the offset after the last decoded element.

    The caller sets `most` to one more than the allowed number, so that it can detect too many
    elements.
    """
    elements: list[bytes] = []
    end = len(view)
    while at < end and len(elements) < min(most, _PIECE):
        if end - at < _LENGTH.size:
            raise InvalidRequest("element byte size indicator exceeds the end of the buffer.")
        (size,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if size > end - at and len(elements) < most - 1:
            raise InvalidRequest(
                f"incomplete string data for {what}, expecting string of length {size} but only "
                f"{end - at} bytes available"
            )
        elements.append(bytes(view[at : at + size]))
        at += size
    return elements, at


def check_count(got: int, count: int, what: str) -> None:
    """Raise InvalidRequest if the number of elements is not the number that the shape requires."""
    if got < count:
        raise InvalidRequest(f"expected {count} string elements for {what}, got {got}")
    if got > count:
        # Triton stops at the first superfluous element, so its text always reports one more than
        # expected.
        raise InvalidRequest(
            f"unexpected number of string elements {count + 1} for {what}, expecting {count}"
        )


def protocol_name(config_name: str) -> str:
    """Return the protocol's name for a datatype of config.pbtxt, e.g. "FP32" for "TYPE_FP32"."""
    return "BYTES" if config_name == "TYPE_STRING" else config_name.removeprefix("TYPE_")
