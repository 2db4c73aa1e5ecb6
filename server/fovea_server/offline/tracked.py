"""Tracks the objects of videos from frame to frame, and draws their ids, trails and counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fovea_client import ImageError
from fovea_engines.results.class_names import class_name
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.offline.entry import Entry, InputImage, Result
from fovea_server.offline.sources import Source
from fovea_server.streams.cameras.overlay import Trails, draw_counts, draw_shapes, draw_trails
from fovea_server.streams.scene import Scene
from fovea_server.streams.zones import Shape
from fovea_server.tracking.tracker import Tracker, Tuning

DEBOUNCE_S, LOST_S = 0.3, 2.0
"""Default times in seconds: until a crossing counts, and until an unseen object is lost.

Streams have the same defaults.
"""


@dataclass(frozen=True, slots=True)
class Tracking:
    """The kind of tracker, and the lines and zones; the same for all videos."""

    options: PredictOptions
    shapes: tuple[Shape, ...]


class VideoTracks:
    """Tracks the objects of one video after another; the frames must come in order.

    Attributes:
        counts: numbers of crossings, by name of the video, then by name of the line or zone.
    """

    def __init__(self, tracking: Tracking, vocabulary: Vocabulary) -> None:
        self.counts: dict[str, dict[str, dict[str, int]]] = {}
        self._tracking, self._vocabulary = tracking, vocabulary
        self._tuning = Tuning.of(tracking.options)
        self._source: Source | None = None
        self._scene: Scene
        self._trails: Trails
        self._tracker: Tracker

    def follow(self, entry: Entry, image: InputImage, time_s: float) -> Entry:
        """Return the entry with track ids for its objects; count crossings of lines and zones."""
        if entry.frame is None or isinstance(entry.result, ImageError):
            return entry
        found = entry.result.found
        if not isinstance(found, Detections):
            return entry
        if entry.source is not self._source:
            self._source = entry.source
            self._scene = Scene(self._tracking.shapes, DEBOUNCE_S, LOST_S)
            self._trails, self._tracker = Trails(), Tracker(self._tracking.options.track or "")
        tracked = self._tracker.identify(found, image.upright.pixels, self._tuning)
        size = image.upright.width, image.upright.height
        self._scene.see(tracked, self._vocabulary.labels, size, time_s)
        self._trails.see(tracked, entry.frame)
        self.counts[entry.source.name] = self._scene.counts
        return replace(entry, result=self._add_ids(entry.result, tracked))

    def _add_ids(self, result: Result, tracked: Detections) -> Result:
        assert tracked.track_ids is not None
        rows = zip(tracked.track_ids.tolist(), tracked.class_ids.tolist(), strict=True)
        found = result.json[Detections.field]
        labels = self._vocabulary.labels
        objects = [
            {**each, "class_id": class_id, "class_name": class_name(labels, class_id)}
            | {"track_id": track_id if track_id > 0 else None}
            for each, (track_id, class_id) in zip(found, rows, strict=True)
        ]
        return Result({**result.json, Detections.field: objects}, result.vocabulary)

    def draw_below(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a copy of the frame with lines, zones and trails.

        Objects are drawn on this copy later.
        """
        canvas = pixels.copy()
        draw_shapes(canvas, self._tracking.shapes)
        draw_trails(canvas, self._trails.points)
        return canvas

    def draw_above(self, canvas: NDArray[np.uint8]) -> None:
        """Draw the counts into the frame, above its objects."""
        draw_counts(canvas, self._tracking.shapes, self._scene.counts)
