"""What schedulers around another scheduler share."""

from __future__ import annotations

import time

from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.door import Door


class Around:
    """Waits, fails and closes as the scheduler inside does.

    Args:
        inside: does the work.
    """

    def __init__(self, inside: Scheduler) -> None:
        self._inside = inside
        # Who is here may not be inside `inside` yet.
        self._door = Door()

    @property
    def identity(self) -> bytes:
        """See `Scheduler`."""
        return self._inside.identity

    @property
    def failure(self) -> str | None:
        """See `Scheduler`."""
        return self._inside.failure

    @property
    def pending(self) -> int:
        """See `Scheduler`."""
        return self._inside.pending

    @property
    def inflight(self) -> int:
        """See `Scheduler`."""
        return self._door.inside

    def close(self, timeout_s: float) -> None:
        """See `Scheduler`."""
        until = time.monotonic() + timeout_s
        self._door.close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))
