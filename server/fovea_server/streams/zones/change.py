"""A change in what a camera sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ChangeKind(StrEnum):
    """The kinds of changes, which are those of events."""

    APPEARED = "appeared"
    LOST = "lost"
    CROSSED = "crossed"
    ENTERED = "entered"
    LEFT = "left"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class TrackedObject:
    """An object with an id.

    Attributes:
        class_name: of its class, or the number of the class as text.
        score: the last one.
        box: the last one, x1 y1 x2 y2 in pixels.
        first_s, last_s: when it was seen first and last.
        moved_s: between the frame before and this one: when it may have passed a border.
        appeared: it has been seen for long enough to count.
    """

    track_id: int
    class_id: int
    class_name: str
    score: float
    box: list[float]
    first_s: float
    last_s: float
    moved_s: float
    appeared: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A change.

    Attributes:
        subject: the object; None of a count.
        shape: name of the line or zone; "" where there is none.
        direction: of a line that was crossed: "in" or "out".
        time_s: the time for which an object has been in the zone, or was seen before it was lost.
        counts: of a line "in" and "out", of a zone "objects".
    """

    kind: ChangeKind
    subject: TrackedObject | None = None
    shape: str = ""
    direction: str = ""
    time_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
