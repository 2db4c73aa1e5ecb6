"""Runs the algorithms of the package `trackers` on detections."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, InvalidRequest

_CLASSES: Mapping[str, str] = {
    "bytetrack": "ByteTrackTracker",
    "sort": "SORTTracker",
    "ocsort": "OCSORTTracker",
    "botsort": "BoTSORTTracker",
}
SEES_PIXELS = frozenset({"botsort"})
"""Trackers that need the pixels of the images, because they measure the motion of the camera."""
_WITHOUT = {"track_high": ("sort",), "track_new": ("ocsort",)}
"""Maps names of thresholds to the trackers without this threshold."""
# Defaults of the thresholds: track_high and track_new as fractions of the distance from `conf` to
# 1, and min_frames. benchmarks/track_thresholds.py compares values. No other values have as high an
# IDF1 for both confident and unsure detectors and count all cars. With min_frames = 2, three
# trackers gain half a percent, and OC-SORT loses three percent.
_HIGH, _NEW, _FRAMES = 0.07, 0.13, 1
# Smallest IoU between the boxes of an object in consecutive frames, if the object stays in its
# place.
_SAME_PLACE = 0.3


@dataclass(frozen=True, slots=True)
class Tuning:
    """The thresholds of a tracker.

    Their defaults depend on the minimum score of detections (`conf`).

    Attributes:
        high: minimum score of boxes in the first round of matching with tracks. Boxes with lower
            scores are matched in a second round.
        new: minimum score of a box that begins a new track.
        min_frames: number of consecutive frames with an object before the object gets an ID.
    """

    high: float
    new: float
    min_frames: int

    @classmethod
    def of(cls, options: PredictOptions) -> Tuning:
        """Return the thresholds of a request. Missing thresholds are computed from `conf`."""
        rest = 1 - options.conf
        new, high = options.track_new, options.track_high
        if new is None:
            new = max(options.conf + _NEW * rest, high or 0.0)
        if high is None:
            # OC-SORT ignores boxes below this threshold, so the default is `conf`.
            share = 0.0 if options.track == "ocsort" else _HIGH
            high = min(options.conf + share * rest, new)
        return cls(high, new, options.min_frames or _FRAMES)


def check(options: PredictOptions) -> None:
    """Check the tracker of a request and its options.

    Raises:
        InvalidOption: the tracker is unknown, or thresholds contradict each other, or the tracker
            does not have a given threshold.
        InvalidRequest: the packages of the extra `streams` are not installed.
    """
    name = options.track or ""
    if name not in _CLASSES:
        raise InvalidOption(f"track is '{name[:60]}'; it must be one of {', '.join(_CLASSES)}")
    for key, names in _WITHOUT.items():
        if name in names and getattr(options, key) is not None:
            raise InvalidOption(f"{key} has no effect on the tracker {name}: remove it")
    new, high = options.track_new, options.track_high
    if new is not None and high is not None and new < high:
        raise InvalidOption(
            f"track_new ({new}) must be at least track_high ({high}): raise track_new, or lower "
            "track_high"
        )
    if find_spec("trackers") is None:
        raise InvalidRequest(
            "the option track needs packages that are not installed on the server: remove the "
            "option, or let the operator install 'fovea-serve[streams]'"
        )


@dataclass(slots=True, eq=False)
class _Known:
    """State of one object.

    Attributes:
        tracklet: tracked object in the package `trackers`. The reference keeps its `id` unique.
        number: track ID.
        box: box in the last frame with the object, [x1, y1, x2, y2] in pixels.
        votes: sum of the scores of each class.
        other: class in the last frame, if the object had moved and had never had this class before.
    """

    tracklet: Any
    number: int
    box: NDArray[np.float32] | None = None
    votes: Counter[int] = field(default_factory=Counter)
    other: int | None = None


class Tracker:
    """A tracker with the state of one stream. Create it in a thread, because its import is slow.

    The class of an object may change between frames: for example, a detector may find a car from
    above as a phone in some frames. Boxes are therefore matched independently of their class, and
    an object gets the class with the largest sum of scores. If a box jumps to another place and has
    a new class in two consecutive frames, it is treated as a new object, for example a television
    behind a person.
    """

    def __init__(self, name: str) -> None:
        # Suppress the import's warnings about optional packages, because they would appear in the
        # server's log.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import trackers

        self._tracker: Any = getattr(trackers, _CLASSES[name])()
        if name == "botsort":
            # Treat the first frame of a stream like all other frames.
            self._tracker.instant_first_frame_activation = False
        self._sees_pixels = name in SEES_PIXELS
        self._known: dict[int, _Known] = {}
        self._last = 0

    def identify(
        self, found: Detections, pixels: NDArray[np.uint8] | None, tuning: Tuning
    ) -> Detections:
        """Return the objects of the next frame with track IDs and classes.

        Args:
            found: detections of the frame.
            pixels: image of the frame, uint8 RGB [height, width, 3]. Trackers in `SEES_PIXELS` need
                it.
            tuning: thresholds of the tracker.

        Returns:
            The detections with track IDs and classes. The ID of an untracked object is 0. The ID of
            an object that is not confirmed yet is negative.
        """
        from supervision import Detections as Given

        given = Given(found.boxes, confidence=found.scores, data={"row": np.arange(len(found))})
        bgr = None
        if self._sees_pixels and pixels is not None:
            bgr = np.ascontiguousarray(pixels[..., ::-1])
        tracker = self._tracker
        # Set all thresholds. A tracker ignores the thresholds that it does not use.
        tracker.high_conf_det_threshold = tuning.high
        tracker.track_activation_threshold = tuning.new
        tracker.minimum_consecutive_frames = tuning.min_frames
        tracked = tracker.update(given, bgr)
        rows: dict[int, int] = {}
        if len(tracked):
            rows = dict(zip(tracked.tracker_id.tolist(), tracked.data["row"].tolist(), strict=True))
            rows.pop(-1, None)
        ids, classes = np.zeros(len(found), np.int32), found.class_ids.copy()
        free = np.setdiff1d(np.arange(len(found)), list(rows.values()))
        known: dict[int, _Known] = {}
        for tracklet in tracker.tracks:
            one = known[id(tracklet)] = self._known.get(id(tracklet)) or self._met(tracklet)
            row = rows.get(tracklet.tracker_id)
            sure = row is not None
            if tracklet.tracker_id == -1 and tracklet.time_since_update == 0:
                row = _nearest(tracklet.get_state_bbox(), found.boxes, free)
            if row is None:
                continue
            classes[row] = self._vote(one, found, row)
            ids[row] = one.number if sure else -one.number
        self._known = known
        return replace(found, track_ids=ids, class_ids=classes)

    def _met(self, tracklet: Any) -> _Known:
        self._last += 1
        return _Known(tracklet, self._last)

    def _vote(self, one: _Known, found: Detections, row: int) -> int:
        box, class_id = found.boxes[row], int(found.class_ids[row])
        before, one.box = one.box, box
        if class_id in one.votes or not (class_id == one.other or _moved(before, box)):
            one.other = None
        elif class_id != one.other:
            # The class in one frame may be wrong, so wait for the next frame.
            one.other = class_id
            return one.votes.most_common(1)[0][0]
        else:
            self._last += 1
            one.number, one.votes, one.other = self._last, Counter(), None
        one.votes[class_id] += found.scores[row]
        return one.votes.most_common(1)[0][0]


def _moved(before: NDArray[np.float32] | None, box: NDArray[np.float32]) -> bool:
    """Return whether a box overlaps the object's previous box less than `_SAME_PLACE`."""
    return before is not None and bool(_overlap(before, box[None])[0] < _SAME_PLACE)


def _nearest(
    box: NDArray[np.float64], boxes: NDArray[np.float32], rows: NDArray[np.intp]
) -> int | None:
    """Return the row (one of `rows`) whose box overlaps most with a tracklet.

    If no box overlaps, return None.
    """
    overlaps = _overlap(box, boxes[rows])
    return int(rows[overlaps.argmax()]) if len(rows) and overlaps.max() > 0 else None


def _overlap(box: NDArray[Any], boxes: NDArray[np.float32]) -> NDArray[Any]:
    """Return the IoU of a box with each of the boxes [n, 4]."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    shared = sides.clip(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return np.asarray(shared / np.maximum(areas - shared, 1e-6))
