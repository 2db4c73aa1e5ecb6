"""Converts parameters of requests and tensors from and to protobuf.

Source: infer_handler.cc and grpc_utils.h of Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.messages import InferRequest, Parameter
from fovea_server.tensors.shared_memory import RegionSlice

Input: TypeAlias = messages.ModelInferRequest.InferInputTensor
Output: TypeAlias = messages.ModelInferRequest.InferRequestedOutputTensor

_CHOICE = "parameter_choice"
_UNSIGNED = 2**64

# Maps the name of a parameter to its field in `InferRequest` and its allowed types.
_KNOWN = {
    "sequence_id": ("sequence_id", ("int64_param", "string_param")),
    "sequence_start": ("sequence_start", ("bool_param",)),
    "sequence_end": ("sequence_end", ("bool_param",)),
    "priority": ("priority", ("int64_param", "uint64_param")),
    "timeout": ("timeout_us", ("int64_param",)),
}
# Maps the name of a shared memory parameter of a tensor to its type.
_PLACE = {
    "shared_memory_region": "string_param",
    "shared_memory_offset": "int64_param",
    "shared_memory_byte_size": "int64_param",
}
# Parameter that requests an empty last response from a decoupled model. It has no effect, because
# Fovea has no decoupled models.
_EMPTY_FINAL = "triton_enable_empty_final_response"


def set_parameters(request: InferRequest, given: Mapping[str, messages.InferParameter]) -> None:
    """Store the parameters of a message in the fields of a request.

    Raises:
        InvalidRequest: a parameter has the wrong type or a reserved name, or the priority is
            negative.
    """
    for name, parameter in given.items():
        what = f"'{name}' parameter"
        if name in _KNOWN:
            field, kinds = _KNOWN[name]
            value = value_of(parameter, what, *kinds)
            if name == "priority" and value < 0:
                raise InvalidRequest("invalid value for 'priority', expected value >= 0.")
            # Convert a signed value to unsigned, as Triton does.
            signed = parameter.WhichOneof(_CHOICE) == "int64_param"
            setattr(request, field, value % _UNSIGNED if signed else value)
        elif name == _EMPTY_FINAL:
            value_of(parameter, what, "bool_param")
        elif name.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
                f"following keys starting with 'triton_' are allowed: {_EMPTY_FINAL} "
            )
        elif (kind := parameter.WhichOneof(_CHOICE)) is None:
            raise InvalidRequest(
                f"invalid value type for {what}, expected int64_param, bool_param, or string_param."
            )
        else:
            request.parameters[name] = getattr(parameter, kind)


def value_of(parameter: messages.InferParameter, what: str, *kinds: str) -> Any:
    """Return the value of a parameter.

    Args:
        parameter: parameter from the message.
        what: description of the parameter for error messages.
        kinds: allowed types.

    Raises:
        InvalidRequest: the type of the parameter is not in `kinds`.
    """
    kind = parameter.WhichOneof(_CHOICE)
    if kind not in kinds:
        raise InvalidRequest(f"invalid value type for {what}, expected {' or '.join(kinds)}.")
    return getattr(parameter, kind)


def set_parameter(message: messages.InferParameter, value: Parameter) -> None:
    """Store a value in an `InferParameter`."""
    match value:
        case bool():
            message.bool_param = value
        case int():
            message.int64_param = value
        case float():
            message.double_param = value
        case str():
            message.string_param = value


def region_slice(tensor: Input | Output) -> RegionSlice | None:
    """Return the region, offset and size of a tensor in shared memory.

    If the tensor is not in shared memory, return None.

    Raises:
        InvalidRequest: a parameter has the wrong type, or only one of region and size is given.
    """
    given = {
        name: value_of(
            tensor.parameters[name], f"'{name}' parameter for tensor '{tensor.name}'", kind
        )
        for name, kind in _PLACE.items()
        if name in tensor.parameters
    }
    region = given.pop("shared_memory_region", None)
    if region is None:
        for name in given:
            raise InvalidRequest(
                f"'{name}' can not be specified without 'shared_memory_region' parameter for "
                f"tensor '{tensor.name}'"
            )
        return None
    if "shared_memory_byte_size" not in given:
        raise InvalidRequest(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{tensor.name}'"
        )
    return RegionSlice(
        region, given.get("shared_memory_offset", 0), given["shared_memory_byte_size"]
    )


def classes_of(output: Output) -> int:
    """Return the number of top classes that replace an output, or 0 to return the output itself.

    Raises:
        InvalidRequest: the parameter has the wrong type, or is below 1.
    """
    if "classification" not in output.parameters:
        return 0
    parameter = output.parameters["classification"]
    if parameter.WhichOneof(_CHOICE) != "int64_param":
        raise InvalidRequest(
            "invalid value type for 'classification' parameter, expected int64_param"
        )
    classes: int = parameter.int64_param
    if classes <= 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected >= 1")
    return classes
