"""Bounds the answers that a stream has computed and not written yet, in bytes."""

from __future__ import annotations

import asyncio
from collections import deque

from fovea_server.byte_budget import ByteBudget, Reservation

# A share of the budget, so that a few streams whose clients do not read leave room for others.
_SHARE = 4
_MAX_BYTES = 64 << 20


class Ahead:
    """The answers of one stream, which reserve their bytes in the order of its requests.

    By this order an answer never waits for room that only later answers could free.

    Attributes:
        size: bytes of all its answers.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size = 0
        self.budget = budget
        self.waiting: deque[StreamReservation] = deque()
        self.freed = asyncio.Event()
        self._most = min(_MAX_BYTES, budget.limit // _SHARE)

    def next(self) -> StreamReservation:
        """Make the reservation of the next request."""
        reservation = StreamReservation(self)
        self.waiting.append(reservation)
        return reservation

    def has_room(self, size: int) -> bool:
        """Return True if another answer fits; the first that is not written always does."""
        if not self.size:
            return True
        return self.size + size <= self._most and self.budget.has_room(size)

    def release(self) -> None:
        """Count nothing any more: the stream has ended."""
        self.budget.count_answer(-self.size)
        self.size = 0


class StreamReservation(Reservation):
    """The bytes of one answer of a stream."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead: Ahead) -> None:
        super().__init__(ahead.budget)
        self._ahead = ahead

    async def reserve(self, size: int, timeout_s: float = 0.0) -> None:
        """Count an answer as soon as those before it are counted, and there is room for it."""
        ahead = self._ahead
        while ahead.waiting[0] is not self or not ahead.has_room(size):
            ahead.freed.clear()
            await ahead.freed.wait()
        await super().reserve(size, timeout_s)
        ahead.size += size
        self.pass_on()

    def resize(self, size: int) -> None:
        """Correct the size."""
        before = self.size
        super().resize(size)
        self._ahead.size += size - before
        self._ahead.freed.set()

    def pass_on(self) -> None:
        """Let the next request reserve; that of an answer which needs no room is done by this."""
        ahead = self._ahead
        if self in ahead.waiting:
            ahead.waiting.remove(self)
            ahead.freed.set()
