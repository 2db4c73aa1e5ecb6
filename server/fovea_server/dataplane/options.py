"""Parses the options of a request for detections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fovea_engines.detect.class_names import class_or_id, split_classes
from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import InvalidOption


def parse_options(given: Mapping[str, Any]) -> PredictOptions:
    """Parse options from text or JSON values.

    Raises:
        InvalidOption: one is unknown, of another type, or out of range.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in OPTIONS:
            raise InvalidOption(f"'{name}' is not an option; options: {', '.join(OPTIONS)}")
        read, kind = OPTIONS[name]
        try:
            values[name] = read(value)
        except (TypeError, ValueError, OverflowError, LookupError):
            raise InvalidOption(f"{name} is '{value}'; it must be {kind}") from None
    return PredictOptions(**values)


def _classes(value: str | Iterable[int | str] | None) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return split_classes(value)
    return tuple(class_or_id(each) for each in value)


def _flag(value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}[value.lower()]


OPTIONS: dict[str, tuple[Any, str]] = {
    "conf": (float, "a number from 0 to 1"),
    "iou": (float, "a number from 0 to 1"),
    "classes": (_classes, "class names or ids separated by commas"),
    "max_det": (int, "a whole number from 1 up"),
    "agnostic": (_flag, "true or false"),
}
