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


def parse_json(data: bytes | bytearray) -> Any:
    """The value.

    Raises:
        MalformedJson: it is none, or it is nested deeper than `MAX_DEPTH`.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        value = _with_nan(data, error)
    # Most have too few brackets to be deep.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _with_nan(data: bytes | bytearray, error: orjson.JSONDecodeError) -> Any:
    """NaN and Infinity, which Triton takes and JSON has not."""
    if b"NaN" in data or b"Infinity" in data:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
    what = "Invalid value." if data else "The document is empty."
    raise MalformedJson(f"failed to parse the request JSON buffer: {what} at {error.pos}")


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
    raise MalformedJson(
        f"failed to parse the request JSON buffer: it is nested deeper than {MAX_DEPTH}"
    )


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
