"""Describes mistakes in names and settings that people write, and suggests corrections."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# pydantic's error type -> name of the required type in TOML.
_KINDS = {
    "string_type": "text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": 'a list, such as ["a", "b"]',
    "dict_type": "a table, such as { a = 1 }",
}
_SHOWN = 60


def similar_path(path: Path) -> str:
    """Return a hint at a file with a similar name, for a path that does not exist.

    If the directory has no such file, return an empty text.
    """
    there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, there, 1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def suggest(given: str, known: Iterable[str]) -> str:
    """Return a hint at a similar known word. If there is none, return a list of the known words."""
    known = list(known)
    close = get_close_matches(given, known, 1)
    return f"; did you mean '{close[0]}'?" if close else f": there are {', '.join(known)}"


def key_fault(error: ErrorDetails, keys: Iterable[str]) -> str:
    """Describe the error of a key in a table: the key is unknown or missing, or its value is wrong.

    Args:
        error: pydantic's error in the key, or in an item of its value.
        keys: allowed keys of the table.
    """
    keys, place = list(keys), error["loc"]
    if not place:
        return "it must be a table"
    key = next((str(each) for each in reversed(place) if each in keys), str(place[-1]))
    if error["type"] == "extra_forbidden":
        return f"'{key[:_SHOWN]}' is not a key{suggest(key, keys)}"
    if error["type"] == "missing":
        return f"'{key}' is missing"
    given, allowed = error["input"], str(error.get("ctx", {}).get("expected", ""))
    choices = allowed.replace(" or ", ", ").split(", ")
    close = get_close_matches(str(given), [each.strip("'") for each in choices], 1, 0.7)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    has = "is" if key == place[-1] else "has"
    must = error["msg"].replace("Input should", "it must")
    if error["type"] in _KINDS:
        must = f"it must be {_KINDS[error['type']]}"
    return f"{key} {has} {_shown(given)}; {must}{hint}"


def _shown(given: object) -> str:
    match given:
        case bool():
            return str(given).lower()
        case list():
            return f"a list of {len(given)}"
        case dict():
            return "a table"
    shown = repr(given) if isinstance(given, str) else str(given)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
