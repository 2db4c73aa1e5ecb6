"""Gives memory that is free again back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import time

from fovea_server.byte_budget import ByteBudget

# Less is worth no trimming, and is soon used again.
_ENOUGH = 64 << 20
# Time from the last large body until memory is trimmed, and from one trimming to the next.
_CALM_S = 1.0
_PAUSE_S = 10.0


class Trimmer:
    """Trims glibc's heaps when large bodies have gone; other allocators do that themselves.

    glibc keeps what a thread has freed in the heap of that thread, which no other thread uses.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._seen = self._trimmed = 0
        self._seen_at = self._trimmed_at = time.monotonic()
        self._running: asyncio.Future[int] | None = None

    def look(self) -> None:
        """Start trimming if it is due; on the event loop, some times a second."""
        freed, now = self._budget.freed, time.monotonic()
        if freed != self._seen:
            self._seen, self._seen_at = freed, now
        if self._trim is None or freed - self._trimmed < _ENOUGH:
            return
        # Where large bodies never end, it is trimmed all the same.
        last = self._trimmed_at + _PAUSE_S
        if now < last or (now < self._seen_at + _CALM_S and now < last + _PAUSE_S):
            return
        self._trimmed, self._trimmed_at = freed, now
        self._running = asyncio.ensure_future(asyncio.to_thread(self._trim, 0))
