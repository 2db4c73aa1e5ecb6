"""How much may wait, and when to come back if it is too much."""

from __future__ import annotations

import threading
import time

from fovea_engines.plural import counted
from fovea_preprocess.errors import InvalidRequest, QueueFull

# Weight of the newest observation in the smoothed rate: about the last twenty answers count.
_SMOOTHING = 0.1


class Admission:
    """Counts what was accepted and not yet answered, and measures how fast it drains.

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
        """Images accepted and not yet answered."""
        return self._inside

    def enter(self, count: int) -> None:
        """Accept `count` images, all or none.

        Raises:
            QueueFull: there is no room for all of them now.
            InvalidRequest: there never will be.
        """
        if count > self.limit:
            raise InvalidRequest(
                f"the request has {count} images and the limit is {self.limit} (--max-queue); "
                "split it"
            )
        with self._lock:
            if self._inside + count > self.limit:
                raise QueueFull(
                    f"{counted(self._inside, 'image')} accepted and not yet answered, and the "
                    f"limit is {self.limit} (--max-queue); send again after the time in "
                    "Retry-After",
                    retry_after_s=self._inside * self._interval_s,
                )
            if self._inside == 0:
                # Idle time says nothing about speed.
                self._last_leave = time.monotonic()
            self._inside += count

    def leave(self, *, served: bool) -> None:
        """One image was answered; or, when not `served`, it failed or was given up."""
        now = time.monotonic()
        with self._lock:
            self._inside -= 1
            # What was given up took no time, and says nothing about speed.
            if served and self._last_leave is not None:
                interval = now - self._last_leave
                weight = _SMOOTHING if self._interval_s else 1.0
                self._interval_s += weight * (interval - self._interval_s)
            if served:
                self._last_leave = now
