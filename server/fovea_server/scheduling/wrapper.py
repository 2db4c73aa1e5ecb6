"""The base of schedulers that wrap another scheduler."""

from __future__ import annotations

import time

from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.inflight_gate import InflightGate


class SchedulerWrapper:
    """Passes everything but `infer` on to the scheduler inside.

    Args:
        inside: the wrapped scheduler.
    """

    def __init__(self, inside: Scheduler) -> None:
        self._inside = inside
        # Requests may be in flight here that have not entered `inside` yet.
        self._gate = InflightGate()

    @property
    def identity(self) -> bytes:
        """Identify the loaded model."""
        return self._inside.identity

    @property
    def failure(self) -> str | None:
        """The reason why it can never answer again, if any."""
        return self._inside.failure

    @property
    def pending(self) -> int:
        """Number of requests not yet given to an engine."""
        return self._inside.pending

    @property
    def inflight(self) -> int:
        """Number of requests not yet answered."""
        return self._gate.inside

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        until = time.monotonic() + timeout_s
        self._gate.close(timeout_s)
        self._inside.close(max(0.0, until - time.monotonic()))
