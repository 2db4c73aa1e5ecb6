"""The plan of a canary: its share of the requests, its time and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fovea_preprocess.errors import InvalidOption

_SPAN = re.compile(r"(?P<count>\d{1,6})(?P<unit>[smhd])")
_SHARE = re.compile(r"\+?(?P<number>\d{1,4}(?:\.\d{1,6})?)(?P<percent>%?)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Field -> its least value, its most, and those in words.
_RANGES = {
    "share": (0.001, 0.5, "0.1% to 50%, so that there is something to compare with"),
    "seconds": (1.0, 365 * 86_400, "1s to 365d"),
    "max_p99": (0.0, 100.0, "0% to 10000%"),
    "max_disagreement": (0.0001, 0.99, "0.01% to 99%"),
}


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """A canary that is to be run; InvalidOption: a value is out of its range.

    Attributes:
        share: of the requests that name no version.
        seconds: after which it becomes current.
        max_p99: part by which its p99 may be longer than that of the current version; None: any.
        max_disagreement: part of the images that may have other results; None: any.
    """

    share: float
    seconds: float = 600.0
    max_p99: float | None = None
    max_disagreement: float | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """Read the plan of a canary's event."""
        given: dict[str, Any] = {one.name: event.get(one.name) for one in fields(cls)}
        return cls(**given)

    def __post_init__(self) -> None:
        for name, (least, most, words) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name.startswith("max_"):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and least <= value <= most):
                raise InvalidOption(f"{name} of a canary is {words}, not {value!r}")


def parse_share(flag: str, text: str | None) -> float | None:
    """Read a share, such as 5%, +10% or 0.05, as a part of 1; InvalidOption if it is none."""
    if text is None:
        return None
    if (found := _SHARE.fullmatch(text)) is None:
        raise InvalidOption(f"{flag} is {text!r}: write a share, for example 5%")
    return round(float(found["number"]) / (100 if found["percent"] else 1), 9)


def parse_span(flag: str, text: str) -> float:
    """Read a time, such as 10m, in seconds; InvalidOption if it is none."""
    if (found := _SPAN.fullmatch(text)) is None:
        raise InvalidOption(f"{flag} is {text!r}: write a number of s, m, h or d, for example 10m")
    return float(int(found["count"]) * _UNITS[found["unit"]])
