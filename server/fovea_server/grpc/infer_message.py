"""Parses a `ModelInferRequest` without copying large tensors.

protobuf copies raw contents. In a large message those fields are found by hand, and protobuf parses
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as messages

from fovea_server.grpc.calls import parse

# Below this size in bytes a copy is cheaper than finding the fields.
_SMALL = 65_536
# Wire type of every field of the message, and the tag of `raw_input_contents`.
_DELIMITED = 2
_RAW = 7 << 3 | _DELIMITED
# Most bytes of a length.
_MOST_VARINT = 10
# More fields than any honest request has.
_MOST_FIELDS = 1024


class InferMessage(NamedTuple):
    """A parsed request.

    Attributes:
        fields: the `ModelInferRequest`, without the raw contents of a large one.
        raw: the raw contents.
        size: bytes that protobuf has parsed.
    """

    fields: messages.ModelInferRequest
    raw: Sequence[bytes | memoryview]
    size: int

    @property
    def model_name(self) -> str:
        """Name of the requested model."""
        name: str = self.fields.model_name
        return name


def parse_infer(data: bytes) -> InferMessage:
    """Parse a message.

    Raises:
        InvalidRequest: the bytes are not such a message.
    """
    if len(data) > _SMALL:
        found = _taken_apart(memoryview(data))
        if found is not None:
            rest, raw = found
            return InferMessage(parse(messages.ModelInferRequest, rest), raw, len(rest))
    fields = parse(messages.ModelInferRequest, data)
    return InferMessage(fields, fields.raw_input_contents, len(data))


def _taken_apart(data: memoryview) -> tuple[bytes, list[memoryview]] | None:
    """Split raw contents from the rest; None if protobuf is to parse the whole."""
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    at = 0
    try:
        while at < len(data):
            begin = at
            tag, at = _varint(data, at)
            if tag & 7 != _DELIMITED:
                return None
            size, at = _varint(data, at)
            begin_of_value, at = at, at + size
            if at > len(data) or len(rest) + len(raw) == _MOST_FIELDS:
                return None
            if tag == _RAW:
                raw.append(data[begin_of_value:at])
            else:
                rest.append(data[begin:at])
    except IndexError:
        return None
    return b"".join(rest), raw


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read the number at an offset; return it and the offset of its end."""
    number = 0
    for index in range(_MOST_VARINT):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError("it has no end")
