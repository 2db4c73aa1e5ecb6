"""A `ModelInferRequest` off the wire, without copies of large tensors.

protobuf copies what travels raw. In a large message those fields are found by hand, and the rest is
left to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2 as messages

from fovea_server.grpc.calls import parse

# Below this a copy is cheaper than a look at the fields.
_SMALL = 65_536
# Wire type of every field of the message, and the tag of `raw_input_contents`.
_DELIMITED = 2
_RAW = 7 << 3 | _DELIMITED
# Bytes of a length.
_MOST_VARINT = 10
# More fields than any request has that means well.
_MOST_FIELDS = 1024


class InferMessage(NamedTuple):
    """A request as it was sent.

    Attributes:
        fields: the `ModelInferRequest`; without its raw contents in a large one.
        raw: its raw contents.
        size: bytes that protobuf has read.
    """

    fields: Any
    raw: Sequence[bytes | memoryview]
    size: int

    @property
    def model_name(self) -> str:
        """The model that is asked for."""
        name: str = self.fields.model_name
        return name


def parse_infer(data: bytes) -> InferMessage:
    """A message from its bytes.

    Raises:
        InvalidRequest: they are none.
    """
    if len(data) > _SMALL:
        found = _taken_apart(memoryview(data))
        if found is not None:
            rest, raw = found
            return InferMessage(parse(messages.ModelInferRequest, rest), raw, len(rest))
    fields = parse(messages.ModelInferRequest, data)
    return InferMessage(fields, fields.raw_input_contents, len(data))


def _taken_apart(data: memoryview) -> tuple[bytes, list[memoryview]] | None:
    """All but the raw contents, and those; None where protobuf is to look at it."""
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
    """The number there, and where it ends."""
    number = 0
    for index in range(_MOST_VARINT):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError("it has no end")
