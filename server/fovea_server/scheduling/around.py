"""What schedulers around another scheduler share."""

from __future__ import annotations

from fovea_server.scheduling.base import Scheduler


class Around:
    """Waits, fails and closes as the scheduler inside does.

    Args:
        inside: does the work.
    """

    def __init__(self, inside: Scheduler) -> None:
        self._inside = inside

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
        return self._inside.inflight

    def close(self, timeout_s: float) -> None:
        """See `Scheduler`."""
        self._inside.close(timeout_s)
