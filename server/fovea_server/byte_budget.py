"""Limits the bytes that are held for all clients at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fovea_preprocess.errors import QueueFull
from fovea_preprocess.size import size_text

# Memory of this many bytes may stay with the allocator: see `memory`.
_LARGE = 1 << 20


class ByteBudget:
    """Counts the bytes of all requests and unsent answers; on the event loop only.

    Attributes:
        limit: most bytes, but for a single larger body.
        held: bytes that are held now; any thread may read it.
        freed: bytes of large bodies that were given back so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.freed = 0

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
