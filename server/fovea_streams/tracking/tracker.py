"""The algorithms of the package `trackers`, for what a model finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.installing import install_extra
from fovea_engines.detect.detections import Detections
from fovea_preprocess.errors import InvalidOption, InvalidRequest

_CLASSES: Mapping[str, str] = {
    "bytetrack": "ByteTrackTracker",
    "sort": "SORTTracker",
    "ocsort": "OCSORTTracker",
    "botsort": "BoTSORTTracker",
}
SEES_PIXELS = frozenset({"botsort"})
"""Trackers that measure how the camera moves."""


def check(name: str) -> None:
    """Refuse a tracker that is not there.

    Raises:
        InvalidOption: it is unknown.
        InvalidRequest: the packages of the extra are not installed.
    """
    if name not in _CLASSES:
        raise InvalidOption(f"track is '{name[:60]}'; it must be one of {', '.join(_CLASSES)}")
    if find_spec("trackers") is None:
        raise InvalidRequest(
            "track needs packages that this server does not have (pip install "
            f"'fovea-serve[streams]'): {install_extra('streams')}, or leave track out"
        )


class Tracker:
    """One tracker with the state of one stream; it is made in a thread, as its import is long."""

    def __init__(self, name: str) -> None:
        import trackers

        self._tracker: Any = getattr(trackers, _CLASSES[name])()
        self._sees_pixels = name in SEES_PIXELS

    def identify(self, found: Detections, pixels: NDArray[np.uint8] | None) -> Detections:
        """Return the objects of the next frame with their ids; `pixels` are RGB."""
        from supervision import Detections as Given

        rows = np.arange(len(found))
        given = Given(found.boxes, confidence=found.scores, data={"row": rows})
        bgr = None
        if self._sees_pixels and pixels is not None:
            bgr = np.ascontiguousarray(pixels[..., ::-1])
        tracked = self._tracker.update(given, bgr)
        ids = np.full(len(found), -1, np.int32)
        if len(tracked):
            ids[tracked.data["row"]] = tracked.tracker_id
        return replace(found, track_ids=ids)
