"""Reads an ONNX file's `metadata_props` without the onnx package and without its weights.

A server that opens a plain Triton repository needs them at start-up, where importing onnx takes
longer than loading the model. Wire format: protobuf.dev/programming-guides/encoding; field numbers:
onnx.proto, messages ModelProto and StringStringEntryProto.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from fovea_preprocess.errors import InvalidModel

_METADATA_PROPS = 14
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_metadata(path: Path) -> dict[str, str]:
    """Read the `metadata_props` of an ONNX file.

    Raises:
        InvalidModel: the file is not a protobuf message.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            entries = [
                dict(_fields(BytesIO(e), len(e), {_KEY, _VALUE}))
                for _, e in _fields(file, size, {_METADATA_PROPS})
            ]
        return {e.get(_KEY, b"").decode(): e.get(_VALUE, b"").decode() for e in entries}
    except ValueError as error:
        raise InvalidModel(f"{path} is not an ONNX model ({error})") from error


def _fields(stream: BinaryIO, size: int, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields with a wanted number; skip all others by seeking."""
    while stream.tell() < size:
        number, kind = divmod(_varint(stream), 8)
        if kind == _VARINT:
            _varint(stream)
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"wire type {kind} at byte {stream.tell()}")
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind) or _varint(stream)
        if stream.tell() + length > size:
            raise ValueError(f"it ends inside field {number}")
        if kind == _BYTES and number in wanted:
            yield number, stream.read(length)
        else:
            stream.seek(length, 1)


def _varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            raise ValueError("it ends inside a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError(f"a number over 64 bits at byte {stream.tell()}")
