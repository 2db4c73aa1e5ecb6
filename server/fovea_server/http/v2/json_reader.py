"""JSON of requests, read by Triton's rules and refused in Triton's words.

Source of the texts: triton_json.h of Triton's common repository; clients match on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from fovea_preprocess.errors import MalformedJson

T = TypeVar("T")

MAX_DEPTH = 100
# Values that take about 20 ms to read; nothing else in the process runs meanwhile. What needs more
# is in the long arrays of tensors, which are read in pieces.
MOST_VALUES = 1 << 18
_WINDOW = 1 << 20


def parse_json(data: bytes | bytearray) -> Any:
    """The value.

    Raises:
        MalformedJson: it is none, or it is nested deeper than `MAX_DEPTH`, or has more than
            `MOST_VALUES` values in it.
    """
    if len(data) > MOST_VALUES:
        _check_commas(data)
    value = loads(data)
    # Most have too few brackets to be deep.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def loads(data: bytes | bytearray, offset: int = 0) -> Any:
    """The value, however deep it is.

    Args:
        data: the text.
        offset: where in the document it begins, for messages.

    Raises:
        MalformedJson: it is none.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # Triton takes these, and JSON has them not.
        if b"NaN" in data or b"Infinity" in data:
            try:
                return _with_nan(data)
            except (ValueError, RecursionError):
                pass
        what = "Invalid value." if data else "The document is empty."
        raise _refused(f"{what} at {offset + error.pos}") from None


def _with_nan(data: bytes | bytearray) -> Any:
    value = json.loads(data, parse_int=_integer)
    # Half a pair of surrogates is no text, and nobody could write it down: a ValueError.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(text: str) -> int | float:
    """As orjson has it: what 64 bits do not hold is a float."""
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(text)


def _check_commas(data: bytes | bytearray) -> None:
    commas = 0
    for at in range(0, len(data), _WINDOW):
        commas += data.count(b",", at, at + _WINDOW)
        if commas > MOST_VALUES:
            raise _refused(
                f"it has more than {MOST_VALUES} values; send tensors that large in binary, or as "
                "one array"
            )


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is list or type(child) is dict
        ]
        if not level:
            return
    raise too_deep()


def too_deep() -> MalformedJson:
    """The error of a document that is nested deeper than `MAX_DEPTH`."""
    return _refused(f"it is nested deeper than {MAX_DEPTH}")


def _refused(why: str) -> MalformedJson:
    return MalformedJson(f"failed to parse the request JSON buffer: {why}")


def find(value: Any, name: str, default: Any = None) -> Any:
    """A member of an object; `default` where it is no object or has no such member."""
    return value.get(name, default) if type(value) is dict else default


def member(value: Any, name: str) -> Any:
    """A member of an object.

    Raises:
        MalformedJson: it is no object, or has no such member.
    """
    if type(value) is not dict or name not in value:
        raise MalformedJson(f"attempt to access non-existing object member '{name}'")
    return value[name]


def read(field: str, reader: Callable[[Any], T], value: Any) -> T:
    """What `reader` makes of a value; its complaint names the field.

    Raises:
        MalformedJson: the reader refused.
    """
    try:
        return reader(value)
    except MalformedJson as error:
        raise MalformedJson(f"Unable to parse '{field}': {error}") from None


def read_member(field: str, reader: Callable[[Any], T], value: Any) -> T:
    """As `read`, of the member of an object that has the field's name."""
    return read(field, lambda parent: reader(member(parent, field)), value)
