"""Builds inference requests and reads responses in the binary tensor form of the v2 protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from httpx import Response
from numpy.typing import NDArray

from fovea_client._attempts import Call
from fovea_client._requests import Request, model_path
from fovea_client._responses import BEFORE_TENSORS, json_size, parse_json

Parameters: TypeAlias = Mapping[str, bool | int | float | str]

_DATATYPES = {
    "bool": "BOOL",
    **{
        f"{kind}{bits}": f"{kind}{bits}".upper()
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
"""NumPy's name of a dtype -> datatype of the protocol."""
_NUMPY = {datatype: np.dtype(name) for name, datatype in _DATATYPES.items()}
_TEXT = "OSUT"  # kinds of NumPy dtypes that hold text: object, bytes, str and StringDType
_LENGTH = 4  # size in bytes of the number that precedes each string and gives its length


def infer(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    names: Iterable[str] | None,
    version: int | str | None,
    parameters: Parameters | None,
) -> Call[dict[str, NDArray[Any]]]:
    """Build an inference request.

    Raises:
        TypeError: the protocol has no datatype for an input.
    """
    described, pieces = [], []
    for name, array in inputs.items():
        datatype, data = _encode(name, array)
        size = {"binary_data_size": len(data)}
        described.append(
            {"name": name, "datatype": datatype, "shape": array.shape, "parameters": size}
        )
        pieces.append(data)
    document: dict[str, Any] = {
        "parameters": {**(parameters or {}), "binary_data_output": True},
        "inputs": described,
    }
    if isinstance(names, str):
        raise TypeError(f"outputs must be a list of names: write outputs=[{names!r}]")
    if names is not None:
        binary = {"binary_data": True}
        document["outputs"] = [{"name": name, "parameters": binary} for name in names]
    text = json.dumps(document).encode()
    headers = {"content-type": "application/octet-stream", BEFORE_TENSORS: str(len(text))}
    path = model_path(model, version, "v2") + "/infer"
    return Call(Request("POST", path, headers, b"".join((text, *pieces))), outputs)


def outputs(response: Response) -> dict[str, NDArray[Any]]:
    """Read the outputs of a model by name. The errors are described at `_responses.prediction`."""
    with parse_json(response, "tensors") as answer:
        found, at = {}, json_size(response)
        for each in answer["outputs"]:
            size = each["parameters"]["binary_data_size"]
            array = _decode(each["datatype"], response.content[at : at + size])
            found[str(each["name"])] = array.reshape(each["shape"])
            at += size
        if at != len(response.content):
            raise ValueError(f"{len(response.content) - at} bytes belong to no tensor")
        return found


def _encode(name: str, array: NDArray[Any]) -> tuple[str, bytes]:
    """Return the datatype of an array and its bytes, in C order and little-endian."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"the input {name!r} must be a NumPy array, not {type(array).__name__}")
    if array.dtype.kind in _TEXT:
        return "BYTES", b"".join(_encode_element(name, each) for each in array.ravel().tolist())
    if array.dtype.name == "bfloat16":  # the dtype of ml_dtypes
        return "BF16", array.view(np.uint16).astype("<u2").tobytes()
    if (datatype := _DATATYPES.get(array.dtype.name)) is None:
        raise TypeError(
            f"the input {name!r} has the type {array.dtype}, which the protocol does not support: "
            "convert it with astype() to the type in Client.model"
        )
    return datatype, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _encode_element(name: str, element: object) -> bytes:
    data = element.encode() if isinstance(element, str) else element
    if not isinstance(data, bytes):
        raise TypeError(
            f"the input {name!r} has an element of type {type(element).__name__}, but an object "
            "array must contain bytes or str: use a numeric dtype for numbers"
        )
    return len(data).to_bytes(_LENGTH, "little") + data


def _decode(datatype: str, data: bytes) -> NDArray[Any]:
    """Return the elements as a new array. `data` itself is read-only and may not be aligned."""
    if datatype == "BYTES":
        return _decode_strings(data)
    if datatype == "BF16":  # BF16 is the upper half of a float32; NumPy has no such dtype
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    dtype = _NUMPY[datatype]
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)


def _decode_strings(data: bytes) -> NDArray[np.object_]:
    elements, at = [], 0
    while at < len(data):
        begin = at + _LENGTH
        at = begin + int.from_bytes(data[at:begin], "little")
        elements.append(data[begin:at])
    if at != len(data):
        raise ValueError("its last string is cut off")
    found = np.empty(len(elements), object)
    found[:] = elements
    return found
