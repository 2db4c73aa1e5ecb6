"""Limits the total memory of the requests of all clients, and rejects slow uploads."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

from fovea_preprocess.errors import BodyTimeout, QueueFull
from fovea_preprocess.text import size_text

# Lowest upload rate in bytes per second. A body that is slower after its timeout is rejected. Slow
# mobile connections reach this rate.
SLOWEST = 8192
# Size in bytes. The allocator may keep the memory of larger bodies after they are freed; see
# `Trimmer`.
_LARGE = 1 << 20
# Number of freed bytes from which trimming is worth its time. Smaller amounts are soon used again.
_ENOUGH = 64 << 20
# A trim begins if no large body was freed for `_CALM_S` seconds, and the previous trim was at least
# `_PAUSE_S` seconds ago.
_CALM_S = 1.0
_PAUSE_S = 10.0
# Time in seconds for which a response waits for memory, if its request sets no timeout.
_PATIENCE_S = 30.0


def too_slow(timeout_s: float, what: str = "body") -> BodyTimeout:
    """Return the error for a body that is slower than `SLOWEST` after its timeout.

    Args:
        timeout_s: timeout in seconds.
        what: name of the body in the error message.
    """
    return BodyTimeout(
        f"the {what} did not arrive within {timeout_s:g} s, and was slower than {SLOWEST // 1024} "
        "KiB/s: send less, or raise the server's --body-timeout-s"
    )


class ByteBudget:
    """Counts the bytes of all requests and of responses that are not sent.

    Use it on the event loop only.

    Attributes:
        limit: largest total number of bytes. If nothing else is in use, a single body or response
            may be larger.
        held: number of bytes in use. Any thread may read it.
        answers: number of bytes in `held` that belong to responses.
        pixels: number of bytes of images that are being decoded. They are not included in `held`,
            because decoding waits for memory and must not cause the rejection of other requests.
        freed: total number of released bytes of large bodies. The allocator may keep this memory.
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
        # Accept any body if nothing else is in use. Otherwise a body above the limit could never be
        # accepted.
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
        """Let the next check trim, because memory was freed that this budget does not count."""
        self.freed += _ENOUGH

    def has_room(self, size: int, mine: int = 0) -> bool:
        """Return whether a response with `mine` reserved bytes may use `size` additional bytes."""
        # A single response may exceed the limit. It cannot wait for the memory of its own request,
        # which is released only after the response is computed.
        return self.answers == mine or self.held + size <= self.limit

    async def wait_for_room(self, size: int, timeout_s: float) -> None:
        """Wait in order of arrival until a response of `size` bytes fits, and reserve the bytes.

        Raises:
            QueueFull: the response did not fit within `timeout_s`.
        """
        # Small responses need not wait behind a large response that does not fit yet.
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
        """Add `more` bytes to the bytes of responses. A negative number releases bytes."""
        self.held += more
        self.answers += more
        if more < 0:
            self._room.set()

    def full_error(self) -> QueueFull:
        """Return the error for a request or response that does not fit into the budget."""
        return QueueFull(
            f"requests and responses in flight use {size_text(self.held)} of at most "
            f"{size_text(self.limit)}: retry later, or raise the server's --max-inflight-mb",
            retry_after_s=1.0,
        )

    def body(self) -> HeldBody:
        """Return a context manager that counts the bytes of one body."""
        return HeldBody(self)


class HeldBody:
    """Context manager that counts the bytes of one body in a budget.

    It returns a function. The `with` block calls this function with the size of each piece of the
    body.
    """

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._size = budget, 0

    def __enter__(self) -> Callable[[int], None]:
        """Return the function that reserves bytes. It raises QueueFull if they exceed the limit."""
        return self._take

    def __exit__(self, *error: object) -> None:
        """Release all bytes of the body."""
        if self._size:
            self._budget.give_back(self._size)

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._size += size


class Trimmer:
    """Returns unused memory of glibc's heaps to the system after large bodies have been freed.

    glibc keeps freed memory in the heap of the thread that freed it, so other threads cannot use
    this memory. Other allocators need no trimming.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._seen = self._trimmed = 0
        self._seen_at = self._trimmed_at = time.monotonic()
        self._running: asyncio.Future[int] | None = None

    def look(self) -> None:
        """Start a trim if it is due.

        Call this method on the event loop several times per second.
        """
        freed, now = self._budget.freed, time.monotonic()
        if freed != self._seen:
            self._seen, self._seen_at = freed, now
        if self._trim is None or freed - self._trimmed < _ENOUGH:
            return
        # If large bodies are freed all the time, a trim is due after two pauses instead of one.
        last = self._trimmed_at + _PAUSE_S
        if now < last or (now < self._seen_at + _CALM_S and now < last + _PAUSE_S):
            return
        self._trimmed, self._trimmed_at = freed, now
        self._running = asyncio.ensure_future(asyncio.to_thread(self._trim, 0))


class Reservation:
    """The bytes of a response in the budget.

    They are reserved before the response is computed, and released after it is written.

    Attributes:
        size: number of bytes reserved now.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    async def reserve(self, size: int, timeout_s: float = 0.0) -> None:
        """Wait until a response fits into the budget, and reserve its bytes.

        Args:
            size: expected size in bytes.
            timeout_s: longest wait in seconds; 0 for the default of 30 s.

        Raises:
            QueueFull: the response did not fit in time.
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
