"""Limits the bytes that are held for all clients at once, and how slowly they may arrive."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

from fovea_preprocess.errors import BodyTimeout, QueueFull
from fovea_preprocess.text import size_text

# Bytes a second of a body that may take longer than its time limit. Poor lines of phones have more.
SLOWEST = 8192
# Memory of bodies of this size may stay with the allocator: see `Trimmer`.
_LARGE = 1 << 20
# Less is worth no trimming, and is soon used again.
_ENOUGH = 64 << 20
# Time from the last large body until memory is trimmed, and from one trimming to the next.
_CALM_S = 1.0
_PAUSE_S = 10.0
# Time that an answer waits for room, where its request sets none.
_PATIENCE_S = 30.0


def too_slow(timeout_s: float, what: str = "body") -> BodyTimeout:
    """Make the error for a body that is not there after `timeout_s`, and slower than `SLOWEST`."""
    return BodyTimeout(
        f"the {what} did not arrive within {timeout_s:g} s, nor with {SLOWEST // 1024} KiB/s: send "
        "less, or raise the server's --body-timeout-s"
    )


class ByteBudget:
    """Counts the bytes of all requests and unsent answers; on the event loop only.

    Attributes:
        limit: most bytes, but for a single larger body or answer.
        held: bytes that are held now; any thread may read it.
        answers: the bytes among them that answers take.
        pixels: bytes that images take while they are decoded. They wait for room beside what is
            held, and refuse nothing else.
        freed: bytes that were given back so far, and may stay with the allocator.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.answers = self.pixels = self.freed = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    def take(self, size: int) -> None:
        """Count `size` more bytes as held; QueueFull if that and other bytes exceed the limit."""
        # A single body may exceed the limit: it could never be accepted otherwise.
        if self.held and self.held + size > self.limit:
            raise self.full_error()
        self.held += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes as no longer held."""
        self.held -= size
        if size >= _LARGE:
            self.freed += size
        self._room.set()

    def gave_much_back(self) -> None:
        """Have memory trimmed that was never counted, and is free now."""
        self.freed += _ENOUGH

    def has_room(self, size: int, mine: int = 0) -> bool:
        """Return True if an answer may hold `size` more bytes; it has `mine` already."""
        # A single answer may exceed the limit: only answers free what requests hold.
        return self.answers == mine or self.held + size <= self.limit

    async def wait_for_room(self, size: int, timeout_s: float) -> None:
        """Wait until an answer of `size` bytes has room, by turns, and count it.

        Raises:
            QueueFull: it took longer.
        """
        # Small ones do not wait behind a large one that has no room.
        if self.has_room(size) and (size <= _LARGE or not self._turn.locked()):
            self.count_answer(size)
            return
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                while not self.has_room(size):
                    self._room.clear()
                    await self._room.wait()
                self.count_answer(size)
        except TimeoutError:
            raise self.full_error() from None

    def count_answer(self, more: int) -> None:
        """Count bytes of answers, or a negative number of them."""
        self.held += more
        self.answers += more
        if more < 0:
            self._room.set()

    def full_error(self) -> QueueFull:
        """Make the error for bytes that have no room."""
        return QueueFull(
            f"{size_text(self.held)} of requests and answers are held already, of at most "
            f"{size_text(self.limit)}: send again later, or raise --max-inflight-mb",
            retry_after_s=1.0,
        )

    def body(self) -> HeldBody:
        """Make the count of one body."""
        return HeldBody(self)


class HeldBody:
    """Counts one body in a budget, during a block: call what the block gets for each piece."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._size = budget, 0

    def __enter__(self) -> Callable[[int], None]:
        """Begin with nothing."""
        return self._take

    def __exit__(self, *error: object) -> None:
        """Count its bytes as no longer held."""
        self._budget.give_back(self._size)

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._size += size


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


class Reservation:
    """The bytes of answers in a budget, from before they are computed until they are written.

    Attributes:
        size: bytes that are counted now.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    async def reserve(self, size: int, timeout_s: float = 0.0) -> None:
        """Count an answer that is about to be computed, as soon as there is room for it.

        Args:
            size: expected bytes.
            timeout_s: longest wait; 0 for the usual one.

        Raises:
            QueueFull: there was no room in time.
        """
        await self._budget.wait_for_room(size, timeout_s or _PATIENCE_S)
        self.size += size

    def resize(self, size: int) -> None:
        """Correct the size, now that it is known; QueueFull if more bytes exceed the limit."""
        more = size - self.size
        if more > 0 and not self._budget.has_room(more, self.size):
            raise self._budget.full_error()
        self._budget.count_answer(more)
        self.size = size

    def release(self) -> None:
        """Count the answers as no longer held."""
        if self.size:
            self.resize(0)
