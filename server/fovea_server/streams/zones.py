"""Lines and zones in an image, and the rules for which objects they count."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from fovea_preprocess.errors import InvalidOption

Point = tuple[float, float]

ANCHORS = {
    f"{vertical}_{horizontal}" if vertical != horizontal else vertical: (x, y)
    for vertical, y in (("bottom", 1.0), ("center", 0.5), ("top", 0.0))
    for horizontal, x in (("center", 0.5), ("left", 0.0), ("right", 1.0))
}
"""Points of a box by name, as fractions of the box's width and height."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s)")
_EXAMPLES = {"line": "door=0.1,0.6,0.9,0.6", "zone": "yard=0.1,0.5,0.9,0.5,0.9,1,0.1,1"}
_KEYS = ("classes", "anchor", "after")


@dataclass(frozen=True, slots=True)
class Shape:
    """A line with two points, or a zone with three or more points.

    Attributes:
        kind: "line" or "zone".
        name: unique name.
        points: (x, y) of each point, as fractions of the image size or in pixels.
        fractions: True if the points are fractions.
        classes: classes that are counted, as names (in any case) or as IDs in text; empty for all
            classes.
        anchor: name in `ANCHORS` of the point that is used as an object's position.
        after_s: time in seconds that an object must be in a zone before it counts.
        text: text from which the shape was parsed.
    """

    kind: Literal["line", "zone"]
    name: str
    points: tuple[Point, ...]
    fractions: bool
    classes: frozenset[str] = frozenset()
    anchor: str = "bottom_center"
    after_s: float = 0.0
    text: str = ""

    @classmethod
    def parse(cls, kind: Literal["line", "zone"], text: str) -> Shape:
        """Parse NAME=x,y,...[:classes=a,b][:anchor=center][:after=30s].

        Raises:
            InvalidOption: the text does not have this form. The message has the reason.
        """
        form, *rest = text.split(":")
        name, apart, numbers = form.partition("=")
        if not apart:
            raise InvalidOption(
                f"{kind} '{text[:60]}' has no '=' between its name and its points: write, for "
                f"example, {_EXAMPLES[kind]}"
            )
        if not _NAME.fullmatch(name):
            raise InvalidOption(
                f"{kind} '{text[:60]}' must begin with a name of letters, digits, _ and -: write, "
                f"for example, {_EXAMPLES[kind]}"
            )
        points, fractions = _points(kind, name, numbers)
        given = dict(option.partition("=")[::2] for option in rest)
        for key in given:
            if key not in _KEYS or (kind == "line" and key == "after"):
                close = get_close_matches(key, _KEYS, 1)
                meant = f"did you mean '{close[0]}'? " if close and close[0] != key else ""
                keys = _KEYS if kind == "zone" else _KEYS[:-1]
                raise InvalidOption(
                    f"unknown key '{key[:60]}' of {kind} {name}; {meant}keys: {', '.join(keys)}"
                )
        anchor = given.get("anchor", "bottom_center")
        if anchor not in ANCHORS:
            raise InvalidOption(
                f"the anchor of {kind} {name} is '{anchor[:60]}'; it must be one of "
                f"{', '.join(ANCHORS)}"
            )
        names = given.get("classes", "").casefold().split(",")
        classes = frozenset(filter(None, map(str.strip, names)))
        after = seconds(f"after of zone {name}", given.get("after", "0s"))
        return cls(kind, name, points, fractions, classes, anchor, after, text)

    def scale_to(self, width: int, height: int) -> list[Point]:
        """Return the points in pixels for an image of this size."""
        across, down = (width, height) if self.fractions else (1, 1)
        return [(x * across, y * down) for x, y in self.points]

    def leaves(self, width: int, height: int) -> bool:
        """Return whether a point is outside an image of this size."""
        return any(x > width or y > height for x, y in self.scale_to(width, height))

    def point_of(self, box: Sequence[float]) -> Point:
        """Return the position of an object with the box [x1, y1, x2, y2].

        The position is the point of the box that `anchor` names.
        """
        (x, y), (x1, y1, x2, y2) = ANCHORS[self.anchor], box
        return x1 + x * (x2 - x1), y1 + y * (y2 - y1)

    def counts(self, class_id: int, name: str) -> bool:
        """Return whether objects of this class are counted."""
        return not self.classes or not self.classes.isdisjoint((name.casefold(), str(class_id)))

    def unknown(self, labels: Sequence[str] | None) -> tuple[int | str, ...] | None:
        """Return the classes of the shape that are not among the labels, or None if all are."""
        known = {label.casefold() for label in labels or ()} if self.classes else set()
        rest = sorted(self.classes - known)
        return tuple(int(each) if each.isdecimal() else each for each in rest) or None


def read_shapes(lines: Sequence[str], zones: Sequence[str]) -> tuple[Shape, ...]:
    """Parse lines and zones.

    Raises:
        InvalidOption: a line or zone is invalid, or two of them have the same name.
    """
    shapes = (
        *(Shape.parse("line", text) for text in lines),
        *(Shape.parse("zone", text) for text in zones),
    )
    names = [shape.name for shape in shapes]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"two lines or zones have the name {name}: rename one")
    return shapes


def seconds(what: str, value: object) -> float:
    """Parse a time such as 200ms or 2s, and return it in seconds.

    Raises:
        InvalidOption: the text is not a time with a unit. The message contains `what`.
    """
    found = _TIME.fullmatch(str(value).strip())
    if found is None:
        raise InvalidOption(
            f"{what} is '{str(value)[:60]}'; it must be a time with a unit, such as 200ms or 2s"
        )
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def _points(kind: str, name: str, text: str) -> tuple[tuple[Point, ...], bool]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(math.isfinite(each) and each >= 0 for each in numbers):
        raise InvalidOption(
            f"the points of {kind} {name} are '{text[:60]}', but must be numbers of 0 or more: "
            f"write, for example, {_EXAMPLES[kind]}"
        )
    if len(numbers) % 2 or (len(numbers) != 4 if kind == "line" else len(numbers) < 6):
        most = "four numbers (two points)" if kind == "line" else "x,y of three or more points"
        count = "one number" if len(numbers) == 1 else f"{len(numbers)} numbers"
        raise InvalidOption(
            f"{kind} {name} has {count}, but needs {most}: write, for example, {_EXAMPLES[kind]}"
        )
    fractions = max(numbers) <= 1
    if not fractions and any(0 < each < 1 for each in numbers):
        raise InvalidOption(
            f"the points of {kind} {name} mix fractions and pixels: use either fractions of the "
            "image size or pixels"
        )
    points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    (x, y), *others = points
    if not any((a - x) * (d - y) != (b - y) * (c - x) for a, b in others for c, d in others) and (
        kind == "zone" or others[0] == (x, y)
    ):
        lacks = (
            "area: its points are on a line" if kind == "zone" else "length: its points are equal"
        )
        raise InvalidOption(f"{kind} {name} has no {lacks}")
    return points, fractions
