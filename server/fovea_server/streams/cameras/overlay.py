"""Draws the trails of objects, and lines and zones with their counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.task_result import TaskResult
from fovea_server.streams.zones import ANCHORS, Point, Shape

_POINTS, _KEPT = 40, 15
_X, _Y = ANCHORS["bottom_center"]

_MARK, _EDGE = (255, 200, 0), (20, 20, 20)
_TINT = 0.18
# Length of an arrow as a fraction of the image's height.
_ARROW = 0.05
# Difference between successive hues in degrees. This is the golden angle, so any number of
# successive hues differ clearly.
_GOLDEN = 137.508
_FONT = cv2.FONT_HERSHEY_SIMPLEX


@dataclass(slots=True)
class _Trail:
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_POINTS))
    last: int = 0


class Trails:
    """The last positions of each tracked object.

    After an object was lost or hidden, its trail stays for some frames.
    """

    def __init__(self) -> None:
        self._trails: dict[int, _Trail] = {}

    def see(self, found: TaskResult | None, frame: int) -> None:
        """Add the objects of a frame. `frame` is the number of the frame."""
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
        """Return the positions of each object in pixels by track ID, the oldest position first."""
        return {key: list(each.points) for key, each in self._trails.items()}


def draw_trails(canvas: NDArray[np.uint8], trails: Mapping[int, Sequence[Point]]) -> None:
    """Draw trails on an image.

    Args:
        canvas: image to draw on, uint8 RGB [height, width, 3]. It is changed in place.
        trails: positions in pixels by track ID.
    """
    line = _line(canvas)
    for track_id, points in trails.items():
        way = [_whole(points)]
        cv2.polylines(canvas, way, False, _EDGE, line + 2, cv2.LINE_AA)
        cv2.polylines(canvas, way, False, _hue(track_id), line, cv2.LINE_AA)


def draw_shapes(canvas: NDArray[np.uint8], shapes: Sequence[Shape]) -> None:
    """Draw lines and zones on an image, which is uint8 RGB [height, width, 3].

    An arrow on each line points in the direction that counts as "in".
    """
    height, width = canvas.shape[:2]
    line = _line(canvas)
    for shape in shapes:
        points = np.array(shape.scale_to(width, height))
        corners = _whole(points)
        if shape.kind == "zone":
            tinted = canvas.copy()
            cv2.fillPoly(tinted, [corners], _MARK)
            cv2.addWeighted(tinted, _TINT, canvas, 1 - _TINT, 0, canvas)
        for colour, weight in ((_EDGE, line + 2), (_MARK, line)):
            cv2.polylines(canvas, [corners], shape.kind == "zone", colour, weight, cv2.LINE_AA)
        middle = points.mean(axis=0)
        if shape.kind == "line":
            across, down = points[1] - points[0]
            left = np.array([down, -across]) / max(float(np.hypot(across, down)), 1e-6)
            tip = middle + left * _ARROW * height
            start, end = _whole(np.stack([middle, tip])).tolist()
            cv2.arrowedLine(canvas, start, end, _MARK, line, cv2.LINE_AA, tipLength=0.4)


def draw_counts(
    canvas: NDArray[np.uint8],
    shapes: Sequence[Shape],
    counts: Mapping[str, Mapping[str, int]],
) -> None:
    """Write names and counts: of lines at their middles, and of zones at their tops."""
    height, width = canvas.shape[:2]
    taken: list[_Place] = []
    for shape in shapes:
        words = " ".join(f"{key} {count}" for key, count in counts.get(shape.name, {}).items())
        x, y = (points := np.array(shape.scale_to(width, height))).mean(axis=0)
        top = points[:, 1].min() if shape.kind == "zone" else y
        _write(canvas, f"{shape.name} {words.removeprefix('objects ')}", x, top, taken)


class _Place(NamedTuple):
    """A rectangle in an image, in pixels."""

    x1: int
    y1: int
    x2: int
    y2: int

    def meets(self, other: _Place) -> bool:
        """Return whether the two rectangles share a pixel."""
        across = self.x1 < other.x2 and other.x1 < self.x2
        return across and self.y1 < other.y2 and other.y1 < self.y2


def _write(
    canvas: NDArray[np.uint8], text: str, middle: float, top: float, taken: list[_Place]
) -> None:
    """Write a text below a point, or below the earlier texts in `taken`.

    If there is room, the text stays inside the image.
    """
    height, width = canvas.shape[:2]
    scale = max(0.4, (width + height) * 0.0004)
    weight = max(1, round(scale * 1.8))
    (wide, high), _ = cv2.getTextSize(text, _FONT, scale, weight)
    x = int(np.clip(middle - wide / 2, 6, max(6, width - wide - 6)))
    lowest = max(high + 6, height - 8)
    first = int(np.clip(top + 1.8 * high, high + 6, lowest))
    # Try positions further down first. If there is none before the lower edge, try positions
    # further up.
    rows = (*range(first, lowest + 1), *range(first, high + 5, -1))
    places = (_Place(x - 5, y - high - 5, x + wide + 5, y + 8) for y in rows)
    free = (each for each in places if not any(map(each.meets, taken)))
    place = next(free, _Place(x - 5, first - high - 5, x + wide + 5, first + 8))
    taken.append(place)
    y = place.y2 - 8
    cv2.rectangle(canvas, place[:2], (place.x2, place.y2 - 1), _EDGE, -1)
    cv2.putText(canvas, text, (x, y), _FONT, scale, (255, 255, 255), weight, cv2.LINE_AA)


def _line(canvas: NDArray[np.uint8]) -> int:
    return max(1, round(sum(canvas.shape[:2]) * 0.0016))


def _hue(track_id: int) -> tuple[int, int, int]:
    hsv = np.array([[[track_id * _GOLDEN % 360 / 2, 190, 255]]], np.uint8)
    red, green, blue = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0, 0].tolist()
    return red, green, blue


def _whole(points: NDArray[np.float64] | Sequence[Point]) -> NDArray[np.int32]:
    return np.array(points).round().astype(np.int32)
