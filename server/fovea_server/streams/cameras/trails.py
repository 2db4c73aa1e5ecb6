"""The ways that the objects of a stream have come, for pictures of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fovea_engines.results.detections import Detections
from fovea_engines.results.task_result import TaskResult
from fovea_server.streams.zones.shape import ANCHORS, Point

_POINTS, _KEPT = 40, 15
_X, _Y = ANCHORS["bottom_center"]


@dataclass(slots=True)
class _Trail:
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_POINTS))
    last: int = 0


class Trails:
    """The last points of each object with an id.

    An object that is hidden keeps its trail for some frames.
    """

    def __init__(self) -> None:
        self._trails: dict[int, _Trail] = {}

    def see(self, found: TaskResult | None, frame: int) -> None:
        """Take the next frame, by its number."""
        if not isinstance(found, Detections) or found.track_ids is None:
            return
        for track_id, (x1, y1, x2, y2) in zip(
            found.track_ids.tolist(), found.boxes.tolist(), strict=True
        ):
            if track_id > 0:
                trail = self._trails.setdefault(track_id, _Trail())
                trail.points.append((x1 + _X * (x2 - x1), y1 + _Y * (y2 - y1)))
                trail.last = frame
        oldest = frame - _KEPT
        self._trails = {key: each for key, each in self._trails.items() if each.last >= oldest}

    @property
    def points(self) -> dict[int, list[Point]]:
        """The points in pixels by track id, the oldest first."""
        return {key: list(each.points) for key, each in self._trails.items()}
