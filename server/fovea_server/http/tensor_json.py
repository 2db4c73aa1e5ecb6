"""Elements of tensors as JSON has them, nested or flat."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import orjson

from fovea_engines.backends.base import Array
from fovea_preprocess.errors import InvalidRequest, MalformedJson
from fovea_server.v2.datatypes import NUMPY
from fovea_server.v2.messages import OutputTensor

_NOT_IN_JSON = ("FP16", "BF16")
_NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_WRONG_SHAPE = "Shape does not match true shape of 'data' field"


def elements_of(name: str, datatype: str, data: list[Any], count: int | None) -> Array:
    """The elements of an input, flat; those of BYTES are objects of `bytes`.

    Args:
        name: of the input.
        datatype: the protocol's name, as sent.
        data: as sent, nested or flat.
        count: how many there must be; None for any number.

    Raises:
        InvalidRequest: tensors of this type do not travel as JSON.
        MalformedJson: an element is not of the type, or there are more or fewer.
    """
    if datatype in _NOT_IN_JSON:
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )
    if datatype not in NUMPY:
        raise InvalidRequest(f"invalid datatype for input {name}")
    flat, kinds = _flattened(data)
    if wrong := _objection(datatype, kinds):
        raise MalformedJson(f"Unable to parse 'data': {wrong}")
    if count is not None and len(flat) != count:
        raise MalformedJson(f"Unable to parse 'data': {_WRONG_SHAPE}")
    if datatype == "BYTES":
        array = np.empty(len(flat), object)
        array[:] = [element.encode(errors="surrogatepass") for element in flat]
        return array
    try:
        return np.array(flat, NUMPY[datatype])
    except OverflowError:
        wrong = f"an element is out of the range of {datatype}"
        if datatype.startswith("UINT") and min(flat) < 0:
            wrong = _NOT_UNSIGNED
        raise MalformedJson(f"Unable to parse 'data': {wrong}") from None


def _flattened(data: list[Any]) -> tuple[list[Any], set[type]]:
    """The elements that are no lists, and their types."""
    kinds = set(map(type, data))
    while kinds == {list}:
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    if list in kinds:
        leaves: list[Any] = []
        _collect(data, leaves)
        data, kinds = leaves, set(map(type, leaves))
    return data, kinds


def _collect(data: list[Any], leaves: list[Any]) -> None:
    """No generator, which would hand each element up through every level."""
    for value in data:
        if type(value) is list:
            _collect(value, leaves)
        else:
            leaves.append(value)


def _objection(datatype: str, kinds: set[type]) -> str | None:
    """What is wrong with elements of these Python types; None where nothing is."""
    access = "attempt to access JSON"
    if datatype == "BYTES":
        return None if kinds <= {str} else f"{access} non-string as string"
    if datatype == "BOOL":
        return None if kinds <= {bool} else f"{access} non-boolean as boolean"
    if datatype.startswith("FP"):
        return None if kinds <= {int, float} else f"{access} non-number as double"
    if datatype.startswith("UINT"):
        return None if kinds <= {int} else _NOT_UNSIGNED
    return None if kinds <= {int} else f"{access} non-signed-integer as signed-integer"


def data_json(tensor: OutputTensor) -> bytes:
    """The elements of an output, flat, as a JSON array.

    Raises:
        InvalidRequest: tensors of this type do not travel as JSON.
    """
    if tensor.datatype in _NOT_IN_JSON:
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary "
            "data format for output"
        )
    flat = tensor.array.ravel()
    if tensor.datatype == "BYTES":
        return _strings(flat.tolist())
    if tensor.datatype.startswith("FP"):
        # Triton writes a float as the double that it is.
        flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            return json.dumps(flat.tolist(), separators=(",", ":")).encode()
    return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)


def _strings(elements: list[bytes]) -> bytes:
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        # As they are, which is no JSON; Triton does the same, and clients of BYTES ask for binary.
        texts = [element.decode(errors="surrogateescape") for element in elements]
        text = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogateescape")
