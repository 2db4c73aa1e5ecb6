"""Parses the JSON of requests by Triton's rules and with Triton's error texts.

Source of the texts: triton_json.h of Triton's common repository. Some clients match these texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from fovea_preprocess.errors import MalformedJson
from fovea_server.json_text import MAX_WEIGHT, check_weight

T = TypeVar("T")

MAX_DEPTH = 100
_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20}|(?<=0))", re.ASCII)


def parse_json(data: bytes | bytearray, most: int = MAX_WEIGHT) -> Any:
    """Parse a JSON document.

    Args:
        data: UTF-8 text.
        most: largest allowed weight of the document; see `json_text.weight`.

    Raises:
        BodyTooLarge: the weight of the document exceeds `most`.
        MalformedJson: the text is not JSON, or is nested deeper than `MAX_DEPTH` levels.
    """
    check_weight(data, most)
    value = _loads(data)
    # Count brackets first, because that is fast and most documents have too few brackets to be
    # nested deeply.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _loads(data: bytes | bytearray) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # Triton accepts NaN and Infinity, although JSON does not have these values.
        if b"NaN" in data or b"Infinity" in data:
            # Limit the document to the default weight, because Python's parser is several times
            # slower than orjson.
            check_weight(data)
            try:
                return _parse_with_nan(data)
            except (ValueError, RecursionError):
                pass
        what = "Invalid value." if data else "The document is empty."
        raise _refuse(f"{what} at {error.pos}") from None


def _parse_with_nan(data: bytes | bytearray) -> Any:
    value = json.loads(data.decode(), parse_int=_integer)
    if b"\\u" in data:
        # This line raises ValueError for a lone surrogate, like orjson.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(text: str) -> int | float:
    """Parse an integer like orjson. If it exceeds 64 bits, return a float."""
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(text)


def _check_depth(value: object) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is list or type(child) is dict
        ]
        if not level:
            return
    raise _refuse(f"the document is nested deeper than {MAX_DEPTH} levels")


def _refuse(why: str) -> MalformedJson:
    return MalformedJson(f"failed to parse the request JSON buffer: {why}")


def find(value: object, name: str, default: object = None) -> Any:
    """Return a member of an object.

    If the value is not an object or has no such member, return `default`.
    """
    return value.get(name, default) if type(value) is dict else default


def member(value: object, name: str) -> Any:
    """Return a member of an object.

    Raises:
        MalformedJson: the value is not an object or lacks the member.
    """
    if type(value) is not dict or name not in value:
        raise MalformedJson(f"attempt to access non-existing object member '{name}'")
    return value[name]


def read(field: str, reader: Callable[[Any], T], value: object) -> T:
    """Return `reader(value)`.

    If it raises MalformedJson, add the name of the field to the error text.
    """
    try:
        return reader(value)
    except MalformedJson as error:
        raise MalformedJson(f"Unable to parse '{field}': {error}") from None


def read_member(field: str, reader: Callable[[Any], T], value: object) -> T:
    """Apply `reader` to the member `field` of an object.

    Error texts contain the name of the field.
    """
    return read(field, lambda parent: reader(member(parent, field)), value)


def as_bool(value: object) -> bool:
    """Return a boolean. Raise MalformedJson if the value has another type."""
    if not isinstance(value, bool):
        raise MalformedJson("attempt to access JSON non-boolean as boolean")
    return value


def as_unsigned(value: object) -> int:
    """Return an integer >= 0. Raise MalformedJson for other values."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedJson("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_string(value: object) -> str:
    """Return a string. Raise MalformedJson if the value has another type."""
    if not isinstance(value, str):
        raise MalformedJson("attempt to access JSON non-string as string")
    return value


def as_list(value: object) -> list[object]:
    """Return a list. Raise MalformedJson if the value has another type."""
    if not isinstance(value, list):
        raise MalformedJson("attempt to access JSON non-array as array")
    return value


def leading_number(text: str) -> int | None:
    """Parse the integer at the beginning of a text like C's strtol, or return None without one.

    Text after the digits is ignored. At most 20 digits are read, because a number of 20 digits
    exceeds every range.
    """
    found = _NUMBER.match(text)
    return None if found is None else int(f"{found[1]}{found[2] or 0}")
