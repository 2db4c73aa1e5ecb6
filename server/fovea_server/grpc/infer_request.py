"""Parses a `ModelInferRequest` without copying large tensors.

protobuf copies the raw contents of tensors. In a large message, this module finds the fields with
raw contents itself, and protobuf parses only the other fields. The checks and their error texts
come from Triton's infer_handler.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.grpc.calls import parse
from fovea_server.grpc.parameters import Input, Output, classes_of, region_slice, set_parameters
from fovea_server.tensors.messages import InferRequest, InputTensor, RequestedOutput
from fovea_server.tensors.shared_memory import OutputPlace, SharedRegions
from fovea_server.tensors.triton_json import leading_number
from fovea_server.tensors.wire import NUMPY

_LARGEST_VERSION = 2**63 - 1

# Size in bytes. protobuf parses smaller messages completely, because a copy is cheaper than a
# search for the fields.
_SMALL = 65_536
# Wire type 2 (length-delimited), and the tags of a message's inputs, outputs and raw contents.
_DELIMITED = 2
_INPUT, _OUTPUT, _RAW = (field << 3 | _DELIMITED for field in (5, 6, 7))
# Tag of the field `shape` in an input.
_SHAPE = 3 << 3 | _DELIMITED
# Maps the wire types of fixed-size fields to the field's size in bytes. Such fields occur only in
# later versions of the message.
_FIXED = {1: 8, 5: 4}
_NUMBER = 0
# Largest number of bytes of a variable-length number.
_MAX_VARINT = 10
# Largest number of fields of a message and of dimensions of a tensor. Real requests have fewer. The
# limit saves memory: an input of a few bytes takes a kilobyte after parsing.
_MAX_FIELDS = 1024
# Maps each field of typed contents to the datatypes that it may hold. The first datatype is the
# type of the field's elements.
_TYPES = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}

# Number of elements that are converted in one step. A longer step would block other threads.
_PIECE = 65_536


class InferMessage(NamedTuple):
    """A parsed request."""

    fields: messages.ModelInferRequest
    """The parsed message. In a large message, the raw contents are left out."""
    raw: Sequence[bytes | memoryview]
    size: int
    """Number of bytes that protobuf parsed."""

    @property
    def model_name(self) -> str:
        """Return the name of the requested model."""
        return str(self.fields.model_name)


def parse_infer(data: bytes) -> InferMessage:
    """Parse a `ModelInferRequest`.

    Raises:
        InvalidRequest: the bytes are not a `ModelInferRequest`, or the message has too many fields.
    """
    if len(data) > _SMALL:
        found = _split_raw(memoryview(data))
        if found is not None:
            rest, raw = found
            return InferMessage(parse(messages.ModelInferRequest, rest), raw, len(rest))
    fields = parse(messages.ModelInferRequest, data)
    return InferMessage(fields, fields.raw_input_contents, len(data))


def _split_raw(data: memoryview) -> tuple[bytes, list[memoryview]] | None:
    """Split a message into the other fields and the raw contents.

    Returns:
        The bytes of the other fields, and a list of raw contents. If the message is damaged, None;
        protobuf then reports the error.

    Raises:
        InvalidRequest: the message has too many fields or dimensions.
    """
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    try:
        for tag, begin, begin_of_value, end in _fields(data):
            if tag == _RAW:
                raw.append(data[begin_of_value:end])
                continue
            rest.append(data[begin:end])
            if tag in (_INPUT, _OUTPUT):
                for inner, _, begin_of_inner, end_of_inner in _fields(data[begin_of_value:end]):
                    if inner == _SHAPE and end_of_inner - begin_of_inner > _MAX_FIELDS:
                        raise _too_many_error()
    except IndexError:
        return None
    return b"".join(rest), raw


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, offset, offset of the value, offset of the next field) for each field.

    The message is `data`.

    Raises:
        IndexError: the message is damaged.
        InvalidRequest: there are more than `_MAX_FIELDS` fields.
    """
    at = 0
    for _ in range(_MAX_FIELDS):
        if at == len(data):
            return
        begin = at
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind in (_NUMBER, _DELIMITED):
            number, at = _varint(data, at)
            size = number if kind == _DELIMITED else 0
        elif (size := _FIXED.get(kind, 0)) == 0:
            raise IndexError("the message has an invalid field")
        begin_of_value, at = at, at + size
        if at > len(data):
            raise IndexError("the message is truncated")
        yield tag, begin, begin_of_value, at
    if at < len(data):
        raise _too_many_error()


def _too_many_error() -> InvalidRequest:
    return InvalidRequest(
        "the request has too many inputs, outputs and parameters, or an input has too many "
        f"dimensions and parameters: at most {_MAX_FIELDS} are allowed"
    )


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the variable-length number at an offset, and the offset of the byte after it."""
    number = 0
    for index in range(_MAX_VARINT):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError("the message is truncated")


def read_request(
    message: InferMessage, version: int | None, regions: SharedRegions
) -> tuple[InferRequest, dict[str, OutputPlace]]:
    """Convert a parsed message to a request.

    The raw arrays of the request are views of the message.

    Returns:
        The request, and a dict from the name of each output in shared memory to the output's place.

    Raises:
        InvalidRequest: the request is invalid; the error has Triton's text.
        NotFound: a shared memory region is not registered.
    """
    fields, buffers = message.fields, message.raw
    request = InferRequest(fields.model_name, version, [], id=fields.id)
    if fields.parameters:
        set_parameters(request, fields.parameters)
    unread = iter(buffers)
    request.inputs = [
        InputTensor(
            tensor.name,
            tensor.datatype,
            tuple(tensor.shape),
            _data(tensor, request.model_name, unread, regions, raw=bool(buffers)),
        )
        for tensor in fields.inputs
    ]
    return request, _read_outputs(fields.outputs, request, regions)


def _data(
    tensor: Input,
    model: str,
    unread: Iterator[bytes | memoryview],
    regions: SharedRegions,
    *,
    raw: bool,
) -> memoryview | Array:
    has_contents = tensor.HasField("contents")
    where = region_slice(tensor) if tensor.parameters else None
    if where is not None:
        if has_contents:
            raise InvalidRequest(
                "unexpected 'content' provided when using shared memory for input tensor "
                f"'{tensor.name}' for model '{model}'"
            )
        return regions.read(*where)
    if has_contents:
        if raw:
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{model}'"
            )
        return _contents(tensor, model)
    data = next(unread, None)
    if data is None:
        raise InvalidRequest(
            f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request."
        )
    return memoryview(data)


def _read_outputs(
    outputs: Iterable[Output],
    request: InferRequest,
    regions: SharedRegions,
) -> dict[str, OutputPlace]:
    """Add the requested outputs to `request`.

    If an output is listed twice, the first entry counts.
    """
    shared: dict[str, OutputPlace] = {}
    named: set[str] = set()
    for output in outputs:
        if output.name in named:
            continue
        named.add(output.name)
        where, classes = None, 0
        if output.parameters:
            where, classes = region_slice(output), classes_of(output)
        if where is not None:
            if classes:
                raise InvalidRequest(
                    "output can't set both 'shared_memory_region' and 'classification'"
                )
            shared[output.name] = regions.output(*where)
        request.outputs.append(RequestedOutput(output.name, classes))
    return shared


def _contents(tensor: Input, model: str) -> memoryview | Array:
    """Return the elements of an input from its typed field, as a 1-D array."""
    data: memoryview | Array = memoryview(b"")
    taken = False
    for field, values in tensor.contents.ListFields():
        explicit = (
            f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}'"
        )
        if taken:
            raise InvalidRequest(f"{explicit}, binary data was already supplied.")
        types = _TYPES[field.name]
        if tensor.datatype not in types:
            sent = tensor.datatype if tensor.datatype in NUMPY else "<invalid>"
            raise InvalidRequest(f"{explicit} of type '{types[0]}', expected datatype '{sent}'")
        data, taken = _array(values, types[0], tensor.datatype), True
    return data


def _array(values: Sequence[bool | int | float | bytes], carrier: str, datatype: str) -> Array:
    elements: Array = np.empty(len(values), NUMPY[carrier])
    for at in range(0, len(elements), _PIECE):
        elements[at : at + _PIECE] = np.fromiter(values[at : at + _PIECE], elements.dtype)
    # If a value exceeds a narrow datatype, keep only its low bytes, as Triton does.
    return elements.astype(NUMPY[datatype], copy=False)


def version_of(text: str) -> int | None:
    """Parse a model version. For "", return None, and the server then chooses the version."""
    if not text:
        return None
    version = leading_number(text)
    if version is None or abs(version) > _LARGEST_VERSION:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidRequest(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version
