"""Parses values of the trace extension in requests, with Triton's messages."""

from __future__ import annotations

from fovea_preprocess.errors import InvalidRequest
from fovea_server.extensions.json_values import as_list, as_string
from fovea_server.extensions.leading_number import leading_number

_LEVELS = ("TIMESTAMPS", "TENSORS")
_MOST_SIGNED, _MOST_UNSIGNED = 2**31 - 1, 2**32 - 1


def levels(name: str, value: object) -> tuple[str, ...] | None:
    """Parse a list of levels: empty for OFF; None if it has no known level.

    Raises:
        MalformedJson: it is no list of strings.
        InvalidRequest: it has OFF and other levels.
    """
    given = [as_string(level) for level in as_list(value)]
    if given == ["OFF"]:
        return ()
    if "OFF" in given:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in _LEVELS if level in given) or None


def whole(name: str, value: object) -> int:
    """Parse a number from 0.

    Raises:
        MalformedJson: it is no string.
        InvalidRequest: it is no number, or out of range.
    """
    return _number(name, value, 0, _MOST_UNSIGNED)


def count(name: str, value: object) -> int:
    """Parse a number from 0, or -1 for no limit.

    Raises:
        MalformedJson: it is no string.
        InvalidRequest: it is no number, or out of range.
    """
    number = _number(name, value, -_MOST_SIGNED, _MOST_SIGNED, shown_least=-1)
    if number < -1:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= -1, got:{value}")
    return number


def _number(name: str, value: object, least: int, most: int, shown_least: int = 0) -> int:
    number = leading_number(as_string(value))
    if number is None:
        raise InvalidRequest(f"Unable to parse '{name}', got: {value}")
    if not least <= number <= _MOST_SIGNED:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {shown_least}, {most} ], "
            f"got: {value}"
        )
    return number
