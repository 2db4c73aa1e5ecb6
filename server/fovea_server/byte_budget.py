"""Limits the bytes that are held for all clients at once, and gives their memory back."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fovea_preprocess.errors import QueueFull
from fovea_preprocess.size import size_text

# Memory of bodies of this size may stay with the allocator: see `Trimmer`.
_LARGE = 1 << 20
# Less is worth no trimming, and is soon used again.
_ENOUGH = 64 << 20
# Time from the last large body until memory is trimmed, and from one trimming to the next.
_CALM_S = 1.0
_PAUSE_S = 10.0


class ByteBudget:
    """Counts the bytes of all requests and unsent answers; on the event loop only.

    Attributes:
        limit: most bytes, but for a single larger body.
        held: bytes that are held now; any thread may read it.
        pixels: bytes that images take while they are decoded. They wait for room beside what is
            held, and refuse nothing else.
        freed: bytes of large bodies that were given back so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.pixels = self.freed = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes as held; QueueFull if that and other bytes exceed the limit."""
        # A single body may exceed the limit: it could never be accepted otherwise.
        if self.held and self.held + size > self.limit:
            raise QueueFull(
                f"{size_text(self.held)} of requests and answers are held already, of at most "
                f"{size_text(self.limit)}: send again later, or raise --max-held-mb",
                retry_after_s=1.0,
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes as no longer held."""
        self.held -= size
        if size >= _LARGE:
            self.freed += size

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Count one body during a block: call the yielded function for each piece."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            self.take(size)
            mine += size

        try:
            yield take
        finally:
            self.give_back(mine)


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
