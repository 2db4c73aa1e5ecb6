"""The objects before one camera, and what they do: from one frame with ids to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fovea_engines.results.class_names import class_name
from fovea_engines.results.detections import Detections
from fovea_server.streams.zones.change import Change, ChangeKind, TrackedObject
from fovea_server.streams.zones.counts import LineCount, ZoneCount
from fovea_server.streams.zones.shape import Shape

# Times of frames are rounded, in some files to milliseconds.
_SLACK_S = 1e-3


class Scene:
    """The state of one camera.

    Args:
        shapes: lines and zones, each with a name of its own.
        debounce_s: something is so when it was seen for so long.
        lost_s: an object that was not seen for so long is lost; until then it is where it was.
    """

    def __init__(self, shapes: Sequence[Shape], debounce_s: float, lost_s: float) -> None:
        self._debounce_s, self._lost_s = debounce_s - _SLACK_S, lost_s
        self._objects: dict[int, TrackedObject] = {}
        self._unsure: dict[int, list[TrackedObject]] = {}
        """Where objects were seen before the tracker was sure of them, by the ids that they get."""
        self._size = 0, 0
        self._counts = [
            (shape, (LineCount if shape.kind == "line" else ZoneCount)(shape, self._debounce_s))
            for shape in shapes
        ]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The counts of each line and zone, by name."""
        return {shape.name: one.counts for shape, one in self._counts}

    def go_on(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Begin with counts of lines from before, by name."""
        for shape, one in self._counts:
            if isinstance(one, LineCount) and shape.name in counts:
                one.counts = dict(counts[shape.name])

    def see(
        self, found: Detections, labels: Sequence[str] | None, size: tuple[int, int], now_s: float
    ) -> list[Change]:
        """Take the next frame: its objects, names of classes, width and height, and its time."""
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
            # Where it was before the tracker was sure says from where it came.
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
        return [*changes, *self._lose(gone), *self._counted(before)]

    def end(self) -> list[Change]:
        """Lose all objects: there are no more frames."""
        before = self.counts
        return [*self._lose(list(self._objects.values())), *self._counted(before)]

    def _met(self, seen: TrackedObject) -> Iterator[Change]:
        last, now_s = self._objects.get(seen.track_id), seen.last_s
        one = seen
        if last is not None:
            # It moved at any time since it was seen last; the middle is never far.
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

    def _counted(self, before: dict[str, dict[str, int]]) -> Iterator[Change]:
        for name, counts in self.counts.items():
            if counts != before[name]:
                yield Change(ChangeKind.COUNT, shape=name, counts=counts)


def _sightings(
    found: Detections, labels: Sequence[str] | None, now_s: float
) -> Iterator[TrackedObject]:
    """Return the objects of a frame with ids as if each was seen for the first time."""
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
