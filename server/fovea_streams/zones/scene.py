"""The objects before one camera, and what they do: from one frame with ids to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_streams.zones.change import Change, ChangeKind, TrackedObject
from fovea_streams.zones.counts import LineCount, ZoneCount
from fovea_streams.zones.shape import Shape

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
        for row, track_id in enumerate(() if found.track_ids is None else found.track_ids.tolist()):
            if track_id >= 0:
                changes += self._met(
                    found, row, class_name(labels, int(found.class_ids[row])), now_s
                )
        gone = [one for one in self._objects.values() if now_s - one.last_s > self._lost_s]
        return [*changes, *self._lose(gone), *self._counted(before)]

    def end(self) -> list[Change]:
        """Lose all objects: there are no more frames."""
        before = self.counts
        return [*self._lose(list(self._objects.values())), *self._counted(before)]

    def _met(self, found: Detections, row: int, name: str, now_s: float) -> Iterator[Change]:
        assert found.track_ids is not None
        track_id = int(found.track_ids[row])
        last = self._objects.get(track_id)
        # It moved at any time since it was seen last; the middle is never far.
        first_s, moved_s, before = now_s, now_s, False
        if last is not None:
            first_s, moved_s, before = last.first_s, (last.last_s + now_s) / 2, last.appeared
        appeared = now_s - first_s >= self._debounce_s
        one = TrackedObject(
            track_id=track_id,
            class_id=int(found.class_ids[row]),
            class_name=name,
            score=float(found.scores[row]),
            box=found.boxes[row].tolist(),
            first_s=first_s,
            last_s=now_s,
            moved_s=moved_s,
            appeared=appeared,
        )
        self._objects[track_id] = one
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
