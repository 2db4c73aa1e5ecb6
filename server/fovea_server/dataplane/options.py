"""Parses the prediction options of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from fovea_engines.results.class_names import split_classes, split_texts
from fovea_engines.results.options import MaskFormat, PredictOptions, VectorFormat
from fovea_preprocess.errors import InvalidOption

CLASSES_AS_TEXT = (
    "names or ids of the classes to return, separated by commas, e.g. person,2; put a name in "
    "double quotes if it contains a comma, consists of digits, or begins or ends with a space"
)
"""Description of the option `classes` in forms and queries, where it is text. In JSON it is a list.
"""

# Maps names of options in other software to Fovea's names, for suggestions in errors.
_SAME = {
    **dict.fromkeys(("confidence", "threshold", "min_confidence", "score"), "conf"),
    **dict.fromkeys(("iou_threshold", "overlap_threshold", "nms"), "iou"),
    **dict.fromkeys(("max_detections", "limit"), "max_det"),
    **dict.fromkeys(("agnostic_nms", "class_agnostic_nms"), "agnostic"),
}
# Maps names of options in version 0.1 to their current names.
FORMER = {"normalise": "normalize"}
# Largest number of characters of a name or value that an error message repeats.
_SHOWN = 60


def parse_options(given: Mapping[str, Any]) -> PredictOptions:
    """Parse options from text or JSON values.

    Raises:
        InvalidOption: an option is unknown or invalid; the message names it.
    """
    values: dict[str, Any] = {}
    for written, value in given.items():
        name = FORMER.get(written, written)
        if name in values:
            raise InvalidOption(f"{name} is given twice, also under its former name: give it once")
        if name not in _OPTIONS:
            known, shown = ", ".join(_OPTIONS), name[:_SHOWN]
            close = [_SAME[shown]] if shown in _SAME else get_close_matches(shown, _OPTIONS, 1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            raise InvalidOption(f"'{shown}' is not an option; {meant}options: {known}")
        read, kind = _READERS[_OPTIONS[name]]
        try:
            values[name] = read(value)
        except (TypeError, ValueError, OverflowError, LookupError):
            raise InvalidOption(
                f"{written} is '{str(value)[:_SHOWN]}'; it must be {kind}"
            ) from None
    return PredictOptions(**values)


def _classes(value: object) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return split_classes(value)
    if not isinstance(value, list) or not all(isinstance(each, int | str) for each in value):
        raise TypeError("not a list of names and ids")
    return tuple(value)


def _texts(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return split_texts(value)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("no text")
    return tuple(value)


def _whole(value: str | float) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def _flag(value: object) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]


_OPTIONS = get_type_hints(PredictOptions)
_READERS: dict[object, tuple[Callable[[Any], object], str]] = {
    float: (float, "a number from 0 to 1"),
    float | None: (float, "a number from 0 to 1"),
    int: (_whole, "a whole number from 1 up"),
    int | None: (_whole, "a whole number from 0 up"),
    bool: (_flag, "true or false"),
    MaskFormat: (str, "a form of masks"),
    VectorFormat: (str, "a form of vectors"),
    str | None: (str, "a text"),
    tuple[str, ...] | None: (_texts, "texts, in a list or separated by commas"),
    tuple[int | str, ...] | None: (
        _classes,
        "class names or ids, in a list or separated by commas",
    ),
}
