"""The binary form of tensors in the protocol, and the names of datatypes.

Source: "Tensor Data Types" of the Open Inference Protocol, and `DataType` of model_config.proto.
Each BYTES element follows its length. The error texts come from Triton's core
(`ValidateBytesInputs`) and backends.
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
"""Maps the protocol's names of datatypes to NumPy's dtypes."""

NAMES = {dtype: name for name, dtype in NUMPY.items()}
"""Maps NumPy's dtypes to the protocol's names."""

# Size in bytes below which a copy is cheaper than a view.
_SMALL = 16_384
# Length of an element: 4 bytes, little-endian.
_LENGTH = struct.Struct("<I")
# Number of elements converted in one step, which takes a few milliseconds. A longer step would
# block other threads.
_PIECE = 16_384


def wire(tensor: OutputTensor) -> bytes | memoryview:
    """Encode a tensor in row-major order, little-endian; a large numeric tensor as a view.

    Each BYTES element follows its length.
    """
    if tensor.datatype == "BYTES":
        return encode_strings(tensor.array)
    if tensor.array.nbytes < _SMALL:
        return tensor.array.tobytes()
    # View the elements as bytes, because memoryview supports neither float16 nor bfloat16.
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data


def encode_strings(array: Array) -> bytes:
    """Encode `bytes` objects in row-major order, each after its length."""
    flat = array.ravel()
    pieces = [_encode(flat[at : at + _PIECE]) for at in range(0, flat.size, _PIECE)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _encode(flat: Array) -> bytes:
    parts: list[bytes] = []
    for element in flat.tolist():
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def decode_strings(view: memoryview, count: int, what: str = "the tensor") -> Array:
    """Decode BYTES elements into a flat array of `bytes` objects.

    Args:
        view: encoded elements.
        count: number of elements that must be in `view`.
        what: name of the tensor in error texts.

    Raises:
        InvalidRequest: there are more or fewer elements, or the last one is incomplete.
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
    """Decode up to `most` elements and return them with the next offset.

    `most` is one more than the tensor may have, so the last element only proves that
    there are too many.
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
    """Raise InvalidRequest if a tensor has more or fewer elements than its shape."""
    if got < count:
        raise InvalidRequest(f"expected {count} string elements for {what}, got {got}")
    if got > count:
        # Triton stops at the first extra element.
        raise InvalidRequest(
            f"unexpected number of string elements {count + 1} for {what}, expecting {count}"
        )


def protocol_name(config_name: str) -> str:
    """Return the protocol's name of a datatype in config.pbtxt: "FP32" for "TYPE_FP32"."""
    return "BYTES" if config_name == "TYPE_STRING" else config_name.removeprefix("TYPE_")
