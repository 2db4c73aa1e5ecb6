"""Parses the body of an infer request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fovea_preprocess.errors import InvalidRequest, MalformedJson
from fovea_server.http.v2.tensor_json import elements_of
from fovea_server.json_text import MAX_OF_TENSORS
from fovea_server.tensors.messages import InferRequest, InputTensor, Parameter, RequestedOutput
from fovea_server.tensors.shared_memory import OutputPlace, RegionSlice, SharedRegions
from fovea_server.tensors.triton_json import (
    as_bool,
    as_list,
    as_string,
    as_unsigned,
    parse_json,
    read,
    read_member,
)

_EMPTY = memoryview(b"")


@dataclass(slots=True)
class OutputEncoding:
    """The encoding of each output in the response.

    Attributes:
        binary: dict from an output's name to True for binary or False for JSON.
        shared: dict from an output's name to the output's place in shared memory.
        by_default: True if outputs that are in neither dict are binary.
    """

    binary: dict[str, bool] = field(default_factory=dict)
    shared: dict[str, OutputPlace] = field(default_factory=dict)
    by_default: bool = False


class BodyReader:
    """Parses the body of an infer request.

    A valid body is parsed with few checks. If parsing fails, slower functions parse the body again
    to find the error and its text.
    """

    def __init__(
        self,
        request: InferRequest,
        text: bytes | bytearray,
        body: bytes | bytearray,
        regions: SharedRegions,
    ) -> None:
        self.encoding = OutputEncoding()
        self._request = request
        self._body = memoryview(body)
        self._at = len(text)
        self._text = text
        self._regions = regions

    def read(self) -> None:
        """Fill in the request and the encoding.

        Raises:
            MalformedJson, InvalidRequest: the body is invalid; the error has Triton's text.
            NotFound: a shared memory region is not registered.
        """
        document = _members(parse_json(self._text, MAX_OF_TENSORS))
        request, encoding = self._request, self.encoding
        if "id" in document:
            request.id = read("id", as_string, document["id"])
        if "parameters" in document:
            encoding.by_default = set_parameters(request, document["parameters"])
        inputs = read_member("inputs", as_list, document)
        request.inputs = [self._input(given) for given in inputs]
        if self._at != len(self._body):
            raise InvalidRequest(
                f"unexpected additional input data for model '{request.model_name}'"
            )
        if "outputs" in document:
            for given in read("outputs", as_list, document["outputs"]):
                self._output(given)

    def _input(self, value: object) -> InputTensor:
        given = _members(value)
        parameters = _members(given.get("parameters"))
        size = parameters.get("binary_data_size")
        region = parameters.get("shared_memory_region")
        data = given.get("data")
        if (data is None) + (size is None) + (region is None) != 2:
            raise _one_source(data=data, binary_data_size=size, shared_memory_region=region)
        name, datatype, shape = _described(given)
        if size is not None:
            if type(size) is not int or size < 0:
                read("binary_data_size", as_unsigned, size)
            return InputTensor(name, datatype, shape, self._next(name, size))
        if region is not None:
            return InputTensor(name, datatype, shape, self._regions.read(*_slice(parameters)))
        count = prod(shape)
        if count == 0:
            return InputTensor(name, datatype, shape, _EMPTY)
        elements = read("data", as_list, data)
        return InputTensor(name, datatype, shape, elements_of(name, datatype, elements, count))

    def _next(self, name: str, size: int) -> memoryview:
        missing = self._at + size - len(self._body)
        if missing > 0:
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {missing} additional bytes for "
                f"model '{self._request.model_name}'"
            )
        self._at += size
        return self._body[self._at - size : self._at]

    def _output(self, value: object) -> None:
        given = _members(value)
        name = given.get("name")
        if type(name) is not str:
            name = read_member("name", as_string, given)
        if name in self.encoding.binary or name in self.encoding.shared:
            return
        parameters = _members(given.get("parameters"))
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            read("classification", as_unsigned, classes)
        binary = parameters.get("binary_data", False)
        if type(binary) is not bool:
            read("binary_data", as_bool, binary)
        if parameters.get("shared_memory_region") is not None:
            if "classification" in parameters:
                raise _either("classification")
            if binary:
                raise _either("binary_data")
            self.encoding.shared[name] = self._regions.output(*_slice(parameters))
        else:
            self.encoding.binary[name] = binary
        self._request.outputs.append(RequestedOutput(name, classes))


def _members(value: object) -> dict[str, Any]:
    """Return the value if it is an object, otherwise {}, as Triton does."""
    return value if type(value) is dict else {}


def _described(given: dict[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """Return the name, datatype and shape of an input."""
    name, datatype, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if type(name) is str and type(datatype) is str and type(shape) is list:
        for size in shape:
            if type(size) is not int or size < 0:
                break
        else:
            return name, datatype, tuple(shape)
    # At least one of the three members is invalid. One of these functions raises the error for it.
    name = read_member("name", as_string, given)
    datatype = read_member("datatype", as_string, given)
    return name, datatype, read_member("shape", _shape, given)


def _shape(value: object) -> tuple[int, ...]:
    return tuple(as_unsigned(size) for size in as_list(value))


def _slice(parameters: dict[str, Any]) -> RegionSlice:
    offset, size = "shared_memory_offset", "shared_memory_byte_size"
    return RegionSlice(
        read_member("shared_memory_region", as_string, parameters),
        read(offset, as_unsigned, parameters.get(offset, 0)),
        read(size, as_unsigned, parameters.get(size, 0)),
    )


def _one_source(**found: object) -> InvalidRequest:
    names = "".join(f" '{name}'" for name, value in found.items() if value is not None)
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in "
        "'parameters', 'shared_memory_region' in 'parameters'. But"
        + (f" set{names}" if names else " no field is set")
    )


def _either(parameter: str) -> InvalidRequest:
    return InvalidRequest(f"Output can't set both 'shared_memory_region' and '{parameter}'")


def set_parameters(request: InferRequest, given: object) -> bool:
    """Store parameters in a request's fields. Return whether outputs are binary by default."""
    if type(given) is not dict:
        raise MalformedJson("failed to get request params.: attempt to get members of a non-object")
    binary = False
    for name, value in given.items():
        if name == "binary_data_output":
            binary = read(name, as_bool, value)
        elif name in _PARAMETERS:
            field, reader = _PARAMETERS[name]
            setattr(request, field, read(name, reader, value))
        elif name.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
        else:
            request.parameters[name] = parameter(name, value)
    return binary


def parameter(name: str, value: object) -> Parameter:
    """Return the value of a custom parameter. Raise InvalidRequest if its type is not allowed."""
    if not isinstance(value, bool | int | float | str):
        raise InvalidRequest(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    return value


def _sequence_id(value: object) -> int | str:
    return value if type(value) is int and value >= 0 else as_string(value)


# Maps the name of a parameter to its field in `InferRequest` and to the function that converts its
# value.
_PARAMETERS: dict[str, tuple[str, Callable[[object], object]]] = {
    "sequence_id": ("sequence_id", _sequence_id),
    "sequence_start": ("sequence_start", as_bool),
    "sequence_end": ("sequence_end", as_bool),
    "priority": ("priority", as_unsigned),
    "timeout": ("timeout_us", as_unsigned),
}
