"""Counts of one line and of one zone, from the places of objects in one frame after the other.

The package `supervision` has both. Its `LineZone` also counts who walks around an end of the line,
and forgets who is hidden for some frames; its `PolygonZone` rounds to pixels, of which it keeps a
picture. In and out, and the points of boxes, are as it has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from fovea_server.streams.zones.change import Change, ChangeKind, TrackedObject
from fovea_server.streams.zones.shape import Point, Shape


@dataclass(slots=True)
class _Side:
    """The side of a line on which an object is, and its last point there; beyond since when."""

    left: bool
    point: Point
    beyond_s: float | None = None
    crosses: bool = False


class LineCount:
    """Counts who crosses a line: in is from right to left, seen from its first point to its second.

    Args:
        debounce_s: an object is on the other side when it was there for so long.
    """

    def __init__(self, shape: Shape, debounce_s: float) -> None:
        self._shape, self._debounce_s = shape, debounce_s
        self._sides: dict[int, _Side] = {}
        self.counts = {"in": 0, "out": 0}

    def place(self, width: int, height: int) -> None:
        """Take a new size of the picture."""
        self._start, self._end = self._shape.placed(width, height)
        self._sides.clear()

    def see(self, one: TrackedObject) -> Change | None:
        """Take an object of the next frame."""
        point = self._shape.point_of(one.box)
        left = _turn(self._start, self._end, point) < 0
        side = self._sides.setdefault(one.track_id, _Side(left, point))
        if left == side.left:
            side.point, side.beyond_s = point, None
            return None
        if side.beyond_s is None:
            side.beyond_s = one.last_s
            # The way from the last point before to the first one behind meets the line, or not.
            start, end = (_turn(side.point, point, each) for each in (self._start, self._end))
            side.crosses = (start > 0) != (end > 0)
        if one.last_s - side.beyond_s < self._debounce_s:
            return None
        self._sides[one.track_id] = _Side(left, point)
        if not side.crosses:
            return None
        way = "in" if left else "out"
        self.counts = {**self.counts, way: self.counts[way] + 1}
        return Change(ChangeKind.CROSSED, one, self._shape.name, way)

    def lose(self, one: TrackedObject) -> None:
        """Forget an object that is lost."""
        self._sides.pop(one.track_id, None)


def _turn(a: Point, b: Point, c: Point) -> float:
    """Return above 0 where c is to the right of the way from a to b, in a picture."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


@dataclass(slots=True)
class _Stay:
    """An object in a zone or out of it, since when; and when it was seen to differ first."""

    inside: bool = False
    since_s: float = 0.0
    told: bool = False
    differs_s: float | None = None
    differs_since_s: float = 0.0


class ZoneCount:
    """Counts who is in a zone, and for how long; as `LineCount`."""

    def __init__(self, shape: Shape, debounce_s: float) -> None:
        self._shape, self._debounce_s = shape, debounce_s
        self._stays: dict[int, _Stay] = {}

    @property
    def counts(self) -> dict[str, int]:
        """The objects that are inside."""
        return {"objects": sum(stay.told for stay in self._stays.values())}

    def place(self, width: int, height: int) -> None:
        """Take a new size of the picture."""
        self._polygon = np.array(self._shape.placed(width, height), np.float32)

    def see(self, one: TrackedObject) -> Change | None:
        """Take an object of the next frame."""
        stay = self._stays.setdefault(one.track_id, _Stay())
        point = self._shape.point_of(one.box)
        inside = cv2.pointPolygonTest(self._polygon, point, measureDist=False) >= 0
        if inside == stay.inside:
            stay.differs_s = None
        else:
            if stay.differs_s is None:
                stay.differs_s, stay.differs_since_s = one.last_s, one.moved_s
            if one.last_s - stay.differs_s >= self._debounce_s:
                before = stay
                stay = self._stays[one.track_id] = _Stay(inside, before.differs_since_s)
                if before.told:
                    return self._change(ChangeKind.LEFT, one, stay.since_s - before.since_s)
        time_s = one.last_s - stay.since_s
        if stay.inside and not stay.told and time_s >= self._shape.after_s:
            stay.told = True
            return self._change(ChangeKind.ENTERED, one, time_s)
        return None

    def lose(self, one: TrackedObject) -> Change | None:
        """Forget an object that is lost."""
        stay = self._stays.pop(one.track_id, _Stay())
        end_s = one.last_s if stay.differs_s is None else stay.differs_since_s
        return self._change(ChangeKind.LEFT, one, end_s - stay.since_s) if stay.told else None

    def _change(self, kind: ChangeKind, one: TrackedObject, time_s: float) -> Change:
        return Change(kind, one, self._shape.name, time_s=time_s)
