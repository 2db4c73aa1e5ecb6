"""What schedulers around another scheduler share."""

from __future__ import annotations

import time

from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.inflight_gate import InflightGate


class SchedulerWrapper:
    """Waits, fails and closes as the scheduler inside does.

    Args:
        inside: does the work.
    """

    def __init__(self, inside: Scheduler) -> None:
        self._inside = inside
        # Who is here may not be inside `inside` yet.
        self._gate = InflightGate()

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
        return self._gate.inside

    def close(self, timeout_s: float) -> None:
        """See `Scheduler`."""
        until = time.monotonic() + timeout_s
        self._gate.close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))
