"""Values of the trace extension, as requests spell them; refused in Triton's words."""

from __future__ import annotations

from typing import Any

from fovea_preprocess.errors import InvalidRequest
from fovea_server.extensions.json_values import as_list, as_string
from fovea_server.extensions.leading_number import leading_number

_LEVELS = ("TIMESTAMPS", "TENSORS")
_MOST_SIGNED, _MOST_UNSIGNED = 2**31 - 1, 2**32 - 1


def levels(name: str, value: Any) -> tuple[str, ...] | None:
    """The levels in a list, none for OFF; None where the list says nothing that is known.

    Raises:
        MalformedJson: it is no list of texts.
        InvalidRequest: it says OFF and more.
    """
    given = [as_string(level) for level in as_list(value)]
    if given == ["OFF"]:
        return ()
    if "OFF" in given:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in _LEVELS if level in given) or None


def whole(name: str, value: Any) -> int:
    """A number from 0.

    Raises:
        MalformedJson: it is no text.
        InvalidRequest: it is no number, or out of its range.
    """
    return _number(name, value, 0, _MOST_UNSIGNED)


def count(name: str, value: Any) -> int:
    """A number from 0, or -1 for as many as there are.

    Raises:
        MalformedJson: it is no text.
        InvalidRequest: it is no number, or out of its range.
    """
    number = _number(name, value, -_MOST_SIGNED, _MOST_SIGNED, shown_least=-1)
    if number < -1:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= -1, got:{value}")
    return number


def _number(name: str, value: Any, least: int, most: int, shown_least: int = 0) -> int:
    number = leading_number(as_string(value))
    if number is None:
        raise InvalidRequest(f"Unable to parse '{name}', got: {value}")
    if not least <= number <= _MOST_SIGNED:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {shown_least}, {most} ], "
            f"got: {value}"
        )
    return number
