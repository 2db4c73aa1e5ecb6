"""Limits the memory that requests of all clients take together, and rejects slow uploads."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

from fovea_preprocess.errors import BodyTimeout, QueueFull
from fovea_preprocess.text import size_text

# Lowest upload rate in bytes per second for a body that exceeds its timeout. Slow mobile
# connections reach this rate.
SLOWEST = 8192
# Size in bytes of a large body. The allocator may keep the memory of such a body; see `Trimmer`.
_LARGE = 1 << 20
# Least number of freed bytes that is worth trimming. Smaller amounts are soon used again.
_ENOUGH = 64 << 20
# Seconds after the last large body until the heaps are trimmed, and seconds between two trims.
_CALM_S = 1.0
_PAUSE_S = 10.0
# Seconds that a response waits for memory if its request sets no timeout.
_PATIENCE_S = 30.0


def too_slow(timeout_s: float, what: str = "body") -> BodyTimeout:
    """Make the error for a body slower than `SLOWEST` that exceeded its timeout of `timeout_s`."""
    return BodyTimeout(
        f"the {what} did not arrive within {timeout_s:g} s, nor with {SLOWEST // 1024} KiB/s: send "
        "less, or raise the server's --body-timeout-s"
    )


class ByteBudget:
    """Counts the bytes of all requests and unsent responses. Use it on the event loop only.

    Attributes:
        limit: largest number of bytes. A single body or response may be larger.
        held: number of bytes in use; any thread may read it.
        answers: the part of `held` that responses use.
        pixels: bytes of images that are being decoded. They are not part of `held`: decoding waits
            for memory, and never causes the rejection of another request.
        freed: number of bytes released so far, which the allocator may keep.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.answers = self.pixels = self.freed = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    def take(self, size: int) -> None:
        """Reserve `size` more bytes.

        Raises:
            QueueFull: other bytes are in use, and the total would exceed the limit.
        """
        # A single body may exceed the limit, because it could never be accepted otherwise.
        if self.held and self.held + size > self.limit:
            raise self.full_error()
        self.held += size

    def give_back(self, size: int) -> None:
        """Release `size` bytes."""
        self.held -= size
        if size >= _LARGE:
            self.freed += size
        self._room.set()

    def gave_much_back(self) -> None:
        """Request a trim after memory was freed that this budget did not count."""
        self.freed += _ENOUGH

    def has_room(self, size: int, mine: int = 0) -> bool:
        """Return True if a response that already uses `mine` bytes may use `size` more bytes."""
        # A single response may exceed the limit. The memory of requests is released only after
        # their responses are computed, so waiting for them would never end.
        return self.answers == mine or self.held + size <= self.limit

    async def wait_for_room(self, size: int, timeout_s: float) -> None:
        """Wait in order of arrival until a response of `size` bytes fits, and reserve the bytes.

        Raises:
            QueueFull: there was no room within `timeout_s`.
        """
        # Small responses do not wait behind a large one that has no room.
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
        """Add `more` bytes to the count of responses; a negative number releases bytes."""
        self.held += more
        self.answers += more
        if more < 0:
            self._room.set()

    def full_error(self) -> QueueFull:
        """Make the error for a request or response that does not fit into the budget."""
        return QueueFull(
            f"{size_text(self.held)} of requests and answers are held already, of at most "
            f"{size_text(self.limit)}: send again later, or raise --max-inflight-mb",
            retry_after_s=1.0,
        )

    def body(self) -> HeldBody:
        """Return a context manager that counts the bytes of one body."""
        return HeldBody(self)


class HeldBody:
    """Counts one body in a budget.

    The `with` block calls the returned function with the size of each piece.
    """

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._size = budget, 0

    def __enter__(self) -> Callable[[int], None]:
        """Return the function that reserves bytes; it raises QueueFull if they exceed the limit."""
        return self._take

    def __exit__(self, *error: object) -> None:
        """Release all bytes of the body."""
        self._budget.give_back(self._size)

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._size += size


class Trimmer:
    """Returns unused memory of glibc's heaps to the system after large bodies have been freed.

    glibc keeps freed memory in the heap of the thread that freed it, and other threads cannot use
    it. Other allocators need no trimming.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._seen = self._trimmed = 0
        self._seen_at = self._trimmed_at = time.monotonic()
        self._running: asyncio.Future[int] | None = None

    def look(self) -> None:
        """Start trimming if it is due. Call it on the event loop several times a second."""
        freed, now = self._budget.freed, time.monotonic()
        if freed != self._seen:
            self._seen, self._seen_at = freed, now
        if self._trim is None or freed - self._trimmed < _ENOUGH:
            return
        # A trim is due after this pause even if large bodies keep arriving.
        last = self._trimmed_at + _PAUSE_S
        if now < last or (now < self._seen_at + _CALM_S and now < last + _PAUSE_S):
            return
        self._trimmed, self._trimmed_at = freed, now
        self._running = asyncio.ensure_future(asyncio.to_thread(self._trim, 0))


class Reservation:
    """The bytes of a response, reserved before it is computed and released after it is written.

    Attributes:
        size: number of bytes reserved now.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    async def reserve(self, size: int, timeout_s: float = 0.0) -> None:
        """Wait until there is room for a response, and reserve its bytes.

        Args:
            size: expected size in bytes.
            timeout_s: longest wait in seconds; 0 for the default of 30 s.

        Raises:
            QueueFull: there was no room in time.
        """
        await self._budget.wait_for_room(size, timeout_s or _PATIENCE_S)
        self.size += size

    def resize(self, size: int) -> None:
        """Replace the expected size by the actual size in bytes.

        Raises:
            QueueFull: the additional bytes exceed the limit.
        """
        more = size - self.size
        if more > 0 and not self._budget.has_room(more, self.size):
            raise self._budget.full_error()
        self._budget.count_answer(more)
        self.size = size

    def release(self) -> None:
        """Release all reserved bytes."""
        if self.size:
            self.resize(0)
