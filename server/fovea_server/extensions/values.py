"""Reads values as Triton does: JSON, with MalformedJson in its parser's words, and numbers."""

from __future__ import annotations

import re

from fovea_preprocess.errors import MalformedJson

_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20}|(?<=0))", re.ASCII)


def as_bool(value: object) -> bool:
    """Check that a value is a boolean."""
    if not isinstance(value, bool):
        raise MalformedJson("attempt to access JSON non-boolean as boolean")
    return value


def as_unsigned(value: object) -> int:
    """Check that a value is a whole number from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedJson("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_string(value: object) -> str:
    """Check that a value is a string."""
    if not isinstance(value, str):
        raise MalformedJson("attempt to access JSON non-string as string")
    return value


def as_list(value: object) -> list[object]:
    """Check that a value is a list."""
    if not isinstance(value, list):
        raise MalformedJson("attempt to access JSON non-array as array")
    return value


def leading_number(text: str) -> int | None:
    """Parse the number at the beginning of a text, as C's strtol; None if there is none.

    Text after the digits is ignored. Of more than 20 digits the first 20 are read, which exceed
    every range already.
    """
    found = _NUMBER.match(text)
    return None if found is None else int(f"{found[1]}{found[2] or 0}")
