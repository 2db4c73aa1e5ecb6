"""The tracked objects in the images of one camera, and the changes from frame to frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import cv2
import numpy as np

from fovea_engines.results.class_names import class_name
from fovea_engines.results.detections import Detections
from fovea_server.streams.zones import Point, Shape

# Tolerance in seconds for rounded frame times. Some files round times to milliseconds.
_SLACK_S = 1e-3


class ChangeKind(StrEnum):
    """The kinds of changes. Each change is reported as an event of the same kind."""

    APPEARED = "appeared"
    LOST = "lost"
    CROSSED = "crossed"
    ENTERED = "entered"
    LEFT = "left"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class TrackedObject:
    """A tracked object.

    Attributes:
        track_id: track ID.
        class_id: class ID.
        class_name: name of the class; its ID as text if it has no name.
        score: score in the last frame with the object.
        box: box in the last frame with the object, [x1, y1, x2, y2] in pixels.
        first_s: time of the first frame with the object, in seconds.
        last_s: time of the last frame with the object, in seconds.
        moved_s: estimated time in seconds of the object's last movement: the middle between the
            last two frames with the object.
        appeared: True if the object was seen for at least the debounce time.
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
    """A change in the images of a camera.

    Attributes:
        kind: kind of the change.
        subject: object that changed; None if only counts changed.
        shape: name of the line or zone; "" for other changes.
        direction: direction in which a line was crossed: "in" or "out".
        time_s: time in seconds for which the object was in the zone, or was seen before it was
            lost.
        counts: numbers "in" and "out" for a line, or "objects" for a zone.
    """

    kind: ChangeKind
    subject: TrackedObject | None = None
    shape: str = ""
    direction: str = ""
    time_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Side:
    """The side of a line on which an object is, and when it was first beyond the line.

    Attributes:
        left: True for the left side.
        point: last point of the object on this side.
        beyond_s: time of the first frame with the object on the other side; None while it is on
            this side.
        crosses: True if the object's path to the other side crosses the line between its two end
            points.
    """

    left: bool
    point: Point
    beyond_s: float | None = None
    crosses: bool = False


class LineCount:
    """Counts the objects that cross a line.

    "in" is the direction from right to left, seen from the first point of the line to the second.

    Args:
        shape: line whose crossings are counted.
        debounce_s: time in seconds for which an object must be on the other side before it counts.
    """

    def __init__(self, shape: Shape, debounce_s: float) -> None:
        self._shape, self._debounce_s = shape, debounce_s
        self._sides: dict[int, _Side] = {}
        self.counts = {"in": 0, "out": 0}

    def place(self, width: int, height: int) -> None:
        """Set the size of the image in pixels."""
        self._start, self._end = self._shape.scale_to(width, height)
        self._sides.clear()

    def see(self, one: TrackedObject) -> Change | None:
        """Process an object of the next frame. If it has crossed the line, return the change."""
        point = self._shape.point_of(one.box)
        left = _turn(self._start, self._end, point) < 0
        side = self._sides.setdefault(one.track_id, _Side(left, point))
        if left == side.left:
            side.point, side.beyond_s = point, None
            return None
        if side.beyond_s is None:
            side.beyond_s = one.last_s
            # Check whether the path from the last point before the line to the first point behind
            # the line crosses the line between its end points.
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
        """Remove a lost object."""
        self._sides.pop(one.track_id, None)


def _turn(a: Point, b: Point, c: Point) -> float:
    """Return a positive number if c is to the right of the line from a to b in an image."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


@dataclass(slots=True)
class _Stay:
    """The stay of an object in a zone: whether it is inside, and the times of its changes."""

    inside: bool = False
    since_s: float = 0.0
    reported: bool = False
    differs_s: float | None = None
    differs_since_s: float = 0.0


class ZoneCount:
    """Counts the objects in a zone, and measures the time that they spend in it.

    For the arguments see `LineCount`.
    """

    def __init__(self, shape: Shape, debounce_s: float) -> None:
        self._shape, self._debounce_s = shape, debounce_s
        self._stays: dict[int, _Stay] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of objects in the zone, with the key "objects"."""
        return {"objects": sum(stay.reported for stay in self._stays.values())}

    def place(self, width: int, height: int) -> None:
        """Set the size of the image in pixels."""
        self._polygon = np.array(self._shape.scale_to(width, height), np.float32)

    def see(self, one: TrackedObject) -> Change | None:
        """Process an object of the next frame.

        If it has entered or left the zone, return the change.
        """
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
                if before.reported:
                    return self._change(ChangeKind.LEFT, one, stay.since_s - before.since_s)
        time_s = one.last_s - stay.since_s
        if stay.inside and not stay.reported and time_s >= self._shape.after_s:
            stay.reported = True
            return self._change(ChangeKind.ENTERED, one, time_s)
        return None

    def lose(self, one: TrackedObject) -> Change | None:
        """Remove a lost object. If it was in the zone, return the change."""
        stay = self._stays.pop(one.track_id, _Stay())
        end_s = one.last_s if stay.differs_s is None else stay.differs_since_s
        return self._change(ChangeKind.LEFT, one, end_s - stay.since_s) if stay.reported else None

    def _change(self, kind: ChangeKind, one: TrackedObject, time_s: float) -> Change:
        return Change(kind, one, self._shape.name, time_s=time_s)


class Scene:
    """The state of the objects in front of one camera.

    Args:
        shapes: lines and zones with unique names.
        debounce_s: time in seconds that a change must last before it counts.
        lost_s: time in seconds without a detection after which an object is lost. Until then, its
            position is the position of its last detection.
    """

    def __init__(self, shapes: Sequence[Shape], debounce_s: float, lost_s: float) -> None:
        self._debounce_s, self._lost_s = debounce_s - _SLACK_S, lost_s
        self._objects: dict[int, TrackedObject] = {}
        self._unsure: dict[int, list[TrackedObject]] = {}
        """Detections of objects that the tracker has not confirmed yet, by the track IDs that the
        objects will get.
        """
        self._size = 0, 0
        self._counts = [
            (shape, (LineCount if shape.kind == "line" else ZoneCount)(shape, self._debounce_s))
            for shape in shapes
        ]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of each line and zone by name."""
        return {shape.name: one.counts for shape, one in self._counts}

    def go_on(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Continue to count crossings from stored counts. `counts` has these by the line's name."""
        for shape, one in self._counts:
            if isinstance(one, LineCount) and shape.name in counts:
                one.counts = dict(counts[shape.name])

    def see(
        self, found: Detections, labels: Sequence[str] | None, size: tuple[int, int], now_s: float
    ) -> list[Change]:
        """Process the next frame, and return the changes.

        Args:
            found: objects that were detected in the frame.
            labels: names of the classes.
            size: (width, height) of the frame in pixels.
            now_s: time of the frame in seconds.
        """
        before, changes = self.counts, list[Change]()
        if size != self._size:
            self._size = size
            for _, count in self._counts:
                count.place(*size)
        for one in _sightings(found, labels, now_s):
            number = abs(one.track_id)
            if one.track_id < 0:
                self._unsure.setdefault(number, []).append(one)
                continue
            # The detections before the confirmation show the object's earlier positions.
            for earlier in self._unsure.pop(number, ()):
                earlier = replace(earlier, track_id=number, class_id=one.class_id)
                changes += self._met(replace(earlier, class_name=one.class_name))
            changes += self._met(one)
        self._unsure = {
            number: seen
            for number, seen in self._unsure.items()
            if now_s - seen[-1].last_s <= self._lost_s
        }
        gone = [one for one in self._objects.values() if now_s - one.last_s > self._lost_s]
        return [*changes, *self._lose(gone), *self._list_count_changes(before)]

    def end(self) -> list[Change]:
        """Report all objects as lost, because no further frame will arrive."""
        before = self.counts
        return [*self._lose(list(self._objects.values())), *self._list_count_changes(before)]

    def _met(self, seen: TrackedObject) -> Iterator[Change]:
        last, now_s = self._objects.get(seen.track_id), seen.last_s
        one = seen
        if last is not None:
            # The object moved at some time between the two frames. The middle is used as an
            # estimate.
            moved_s = (last.last_s + now_s) / 2
            one = replace(seen, first_s=last.first_s, moved_s=moved_s)
        before = last is not None and last.appeared
        appeared = now_s - one.first_s >= self._debounce_s
        one = self._objects[seen.track_id] = replace(one, appeared=appeared)
        if appeared and not before:
            yield Change(ChangeKind.APPEARED, one)
        for shape, count in self._counts:
            if shape.counts(one.class_id, one.class_name) and (change := count.see(one)):
                yield change

    def _lose(self, gone: Sequence[TrackedObject]) -> Iterator[Change]:
        for one in gone:
            del self._objects[one.track_id]
            for _, count in self._counts:
                if change := count.lose(one):
                    yield change
            if one.appeared:
                yield Change(ChangeKind.LOST, one, time_s=one.last_s - one.first_s)

    def _list_count_changes(self, before: dict[str, dict[str, int]]) -> Iterator[Change]:
        for name, counts in self.counts.items():
            if counts != before[name]:
                yield Change(ChangeKind.COUNT, shape=name, counts=counts)


def _sightings(
    found: Detections, labels: Sequence[str] | None, now_s: float
) -> Iterator[TrackedObject]:
    """Yield the tracked objects of a frame.

    Each one is returned as if this were its first frame.
    """
    for row, track_id in enumerate(() if found.track_ids is None else found.track_ids.tolist()):
        if track_id:
            class_id = int(found.class_ids[row])
            yield TrackedObject(
                track_id=track_id,
                class_id=class_id,
                class_name=class_name(labels, class_id),
                score=float(found.scores[row]),
                box=found.boxes[row].tolist(),
                first_s=now_s,
                last_s=now_s,
                moved_s=now_s,
                appeared=False,
            )
