"""Converts tensor elements from JSON and to JSON."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import orjson

from fovea_engines.session import Array
from fovea_preprocess.errors import AnswerTooLarge, InvalidRequest, MalformedJson
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.wire import NUMPY

MANY = 16_384
"""Number of elements per step. The conversion of these elements to JSON takes about a millisecond.
"""

MAX_ELEMENTS = 4 << 20
"""Largest number of elements of a response in JSON. Their text has about 80 MB, and the conversion
takes 20 s.
"""

ELEMENT = 20
"""Size in bytes of one element as text, estimated for a double."""

_NOT_IN_JSON = ("FP16", "BF16")
_NOT_UNSIGNED = "non-unsigned-integer as unsigned-integer"
# Tuples of (prefix of datatypes, Python types of valid elements, error text for elements of other
# types).
_TAKES: tuple[tuple[str, set[type], str], ...] = (
    ("BYTES", {str}, "non-string as string"),
    ("BOOL", {bool}, "non-boolean as boolean"),
    ("FP", {int, float}, "non-number as double"),
    ("UINT", {int}, _NOT_UNSIGNED),
    ("INT", {int}, "non-signed-integer as signed-integer"),
)
_WRONG_SHAPE = "Shape does not match true shape of 'data' field"


def elements_of(name: str, datatype: str, data: list[Any], count: int | None) -> Array:
    """Convert JSON data to a 1-D array; BYTES elements become `bytes` objects.

    Args:
        name: name of the input.
        datatype: the protocol's name of the datatype.
        data: JSON list, which may be nested.
        count: expected number of elements; None for any number.

    Raises:
        InvalidRequest: the datatype is unknown, or cannot be sent as JSON.
        MalformedJson: an element has a type that does not fit the datatype, or the number of
            elements differs from `count`.
    """
    if datatype in _NOT_IN_JSON:
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )
    if datatype not in NUMPY:
        raise InvalidRequest(f"invalid datatype for input {name}")
    if datatype == "BYTES":
        # Do not compare the number of strings here, because Triton counts them later and reports
        # another error.
        count = None
    flat, kinds = _flatten(data)
    if count is not None and len(flat) != count:
        raise _objection(datatype, kinds) or _unfit_error(_WRONG_SHAPE)
    if wrong := _objection(datatype, kinds):
        raise wrong
    # Convert in pieces, so that other threads can run between two pieces.
    pieces = [_elements(datatype, flat[at : at + MANY]) for at in range(0, len(flat), MANY)]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else _elements(datatype, [])


def _elements(datatype: str, flat: list[Any]) -> Array:
    if datatype == "BYTES":
        array = np.empty(len(flat), object)
        array[:] = [element.encode() for element in flat]
        return array
    try:
        return np.array(flat, NUMPY[datatype])
    except OverflowError:
        if datatype.startswith("UINT") and min(flat) < 0:
            raise _unfit_error(f"attempt to access JSON {_NOT_UNSIGNED}") from None
        raise _unfit_error(f"an element is out of the range of {datatype}") from None


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """Return the elements of nested lists in one list, and the set of their types."""
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
    """Append all leaves of nested lists to a list.

    A generator would be slower: it passes each leaf through every level.
    """
    for value in data:
        if type(value) is list:
            _collect(value, leaves)
        else:
            leaves.append(value)


def _objection(datatype: str, kinds: set[type]) -> MalformedJson | None:
    """Return an error if elements of these Python types do not fit the datatype.

    If they fit, return None.
    """
    for prefix, takes, wrong in _TAKES:
        if datatype.startswith(prefix) and not kinds <= takes:
            return _unfit_error(f"attempt to access JSON {wrong}")
    return None


def _unfit_error(why: str) -> MalformedJson:
    return MalformedJson(f"Unable to parse 'data': {why}")


def refuse_long(elements: int) -> None:
    """Raise AnswerTooLarge if outputs have too many elements for JSON."""
    if elements > MAX_ELEMENTS:
        raise AnswerTooLarge(
            f"the outputs have {elements:,} elements, but JSON supports at most {MAX_ELEMENTS:,}: "
            "request binary data (the parameter binary_data or binary_data_output of infer), or "
            "use gRPC"
        )


def data_json(tensor: OutputTensor) -> list[bytes]:
    """Convert an output to a flat JSON array, and return the text in pieces.

    Other threads can run between two pieces.

    Raises:
        InvalidRequest: the datatype cannot be sent as JSON.
    """
    if tensor.datatype in _NOT_IN_JSON:
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary "
            "data format for output"
        )
    written = _strings if tensor.datatype == "BYTES" else _numbers
    flat = tensor.array.ravel()
    if flat.size <= MANY:
        return [written(flat)]
    pieces = [b"["]
    for at in range(0, flat.size, MANY):
        pieces += (written(flat[at : at + MANY])[1:-1], b",")
    pieces[-1] = b"]"
    return pieces


def _numbers(flat: Array) -> bytes:
    if flat.dtype.kind != "f":
        return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    # Triton converts a float32 to a double before it writes the text.
    with np.errstate(invalid="ignore"):
        flat = flat.astype(np.float64)
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    finite = np.isfinite(flat)
    if finite.all():
        return text
    # JSON has no NaN and no infinity. Like Triton, write the names of JavaScript.
    odd = flat[~finite]
    words = np.where(np.isnan(odd), b"NaN", np.where(odd > 0, b"Infinity", b"-Infinity")).tolist()
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*words, b""], strict=True)))


def _strings(flat: Array) -> bytes:
    elements = flat.tolist()
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        # Copy the bytes unchanged, as Triton does, although bytes outside UTF-8 make the JSON
        # invalid. Clients should request binary data for BYTES outputs.
        texts = [element.decode(errors="surrogateescape") for element in elements]
        text = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogateescape")
