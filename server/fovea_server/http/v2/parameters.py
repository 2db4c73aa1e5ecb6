"""Reads the parameters of a request."""

from __future__ import annotations

from fovea_preprocess.errors import InvalidRequest, MalformedJson
from fovea_server.extensions.json_values import as_bool, as_string, as_unsigned
from fovea_server.http.v2.json_reader import read
from fovea_server.tensors.messages import InferRequest, Parameter


def set_parameters(request: InferRequest, given: object) -> bool:
    """Store parameters in the fields of a request.

    Returns:
        True if outputs are binary by default.

    Raises:
        MalformedJson: one does not have the type that the protocol says.
        InvalidRequest: one has a type that no parameter has, or is reserved.
    """
    if type(given) is not dict:
        raise MalformedJson("failed to get request params.: attempt to get members of a non-object")
    binary = False
    for name, value in given.items():
        if name == "binary_data_output":
            binary = read(name, as_bool, value)
        elif name == "sequence_id":
            request.sequence_id = read(name, _sequence_id, value)
        elif name == "sequence_start":
            request.sequence_start = read(name, as_bool, value)
        elif name == "sequence_end":
            request.sequence_end = read(name, as_bool, value)
        elif name == "priority":
            request.priority = read(name, as_unsigned, value)
        elif name == "timeout":
            request.timeout_us = read(name, as_unsigned, value)
        elif name.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
        else:
            request.parameters[name] = parameter(name, value)
    return binary


def parameter(name: str, value: object) -> Parameter:
    """Check a custom parameter.

    Raises:
        InvalidRequest: it has a type that no parameter has.
    """
    if not isinstance(value, bool | int | float | str):
        raise InvalidRequest(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    return value


def _sequence_id(value: object) -> int | str:
    return value if type(value) is int and value >= 0 else as_string(value)
