"""Values of JSON that must be of a type; where they are not, in the words of Triton's parser."""

from __future__ import annotations

from typing import Any

from fovea_preprocess.errors import MalformedJson


def as_bool(value: Any) -> bool:
    """True or false.

    Raises:
        MalformedJson: it is something else.
    """
    if not isinstance(value, bool):
        raise MalformedJson("attempt to access JSON non-boolean as boolean")
    return value


def as_unsigned(value: Any) -> int:
    """A whole number from 0.

    Raises:
        MalformedJson: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedJson("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_string(value: Any) -> str:
    """A text.

    Raises:
        MalformedJson: it is something else.
    """
    if not isinstance(value, str):
        raise MalformedJson("attempt to access JSON non-string as string")
    return value


def as_list(value: Any) -> list[Any]:
    """A list.

    Raises:
        MalformedJson: it is something else.
    """
    if not isinstance(value, list):
        raise MalformedJson("attempt to access JSON non-array as array")
    return value
