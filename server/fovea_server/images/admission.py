"""Limits the images that wait, and estimates when to send again."""

from __future__ import annotations

import threading
import time

from fovea_engines.plural import counted
from fovea_preprocess.errors import InvalidRequest, QueueFull

# Weight of the newest observation in the smoothed rate: about the last twenty answers count.
_SMOOTHING = 0.1


class Admission:
    """Counts accepted images, and measures how fast they are answered.

    Args:
        limit: most images accepted at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._last_leave: float | None = None
        self._interval_s = 0.0

    @property
    def inside(self) -> int:
        """Number of images accepted and not yet answered."""
        return self._inside

    def enter(self, count: int) -> None:
        """Accept `count` images, all or none.

        Raises:
            QueueFull: they would exceed the limit now.
            InvalidRequest: they exceed the limit by themselves.
        """
        if count > self.limit:
            raise InvalidRequest(
                f"the request has {count} images and the limit is {self.limit} (--max-queue); "
                "split it"
            )
        with self._lock:
            if self._inside + count > self.limit:
                raise QueueFull(
                    f"{counted(self._inside, 'image')} accepted and not yet answered, and "
                    f"the limit is {self.limit} (--max-queue); send again after the time in "
                    "Retry-After",
                    retry_after_s=self._inside * self._interval_s,
                )
            if self._inside == 0:
                # Idle time says nothing about speed.
                self._last_leave = time.monotonic()
            self._inside += count

    def leave(self, *, served: bool) -> None:
        """Count an answered image; one that is not `served` failed or was cancelled."""
        now = time.monotonic()
        with self._lock:
            self._inside -= 1
            # A cancelled image took no time, and says nothing about speed.
            if served and self._last_leave is not None:
                interval = now - self._last_leave
                weight = _SMOOTHING if self._interval_s else 1.0
                self._interval_s += weight * (interval - self._interval_s)
            if served:
                self._last_leave = now
