"""Checks the types of JSON values: MalformedJson with the messages of Triton's parser."""

from __future__ import annotations

from fovea_preprocess.errors import MalformedJson


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
