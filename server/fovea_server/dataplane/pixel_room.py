"""Lets images that take much memory to decode in, a few at a time, client by client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fovea_preprocess.errors import QueueFull
from fovea_preprocess.header import decoding_bytes
from fovea_server.byte_budget import ByteBudget

# Bytes that decoding takes. Most images are small, and pass; those over the second number take
# seconds, and never all threads.
SMALL, LARGE = 24 << 20, 128 << 20

_Waiting = tuple[asyncio.Future[None], int]


class PixelRoom:
    """Counts what decoding takes in the budget, and bounds how many images do that at once.

    An image waits until it fits, and one that fits nowhere until it is alone. So small images never
    wait behind many heavy ones, and a client with few images not behind all those of another. It
    belongs to the event loop.

    Args:
        budget: of all bytes that are held.
        cores: that decode.
        most_pixels: of an image; larger ones are refused before they are decoded.
        most_waiting: images; more are refused.
    """

    def __init__(
        self, budget: ByteBudget, *, cores: int, most_pixels: int, most_waiting: int
    ) -> None:
        self._budget = budget
        self._most_pixels = most_pixels
        # One waits beside those that are decoded, so that no thread waits for the event loop.
        self._most, self._most_large = cores + 1, max(1, cores // 2)
        self._most_waiting = most_waiting
        self._inside = self._large = self._count = 0
        # In the order in which clients take their turns.
        self._waiting: dict[str, deque[_Waiting]] = {}

    def size_of(self, image: bytes | bytearray) -> int:
        """Return the bytes that decoding an image takes."""
        return decoding_bytes(image, self._most_pixels)

    @asynccontextmanager
    async def decoding(self, size: int, client: str) -> AsyncIterator[None]:
        """Hold the bytes of an image during a block, once there is room for them.

        Raises:
            QueueFull: too many wait.
        """
        await self._enter(size, client)
        try:
            yield
        finally:
            self._leave(size)

    def _leave(self, size: int) -> None:
        self._budget.pixels -= size
        self._inside -= 1
        self._large -= size > LARGE
        self._admit()

    async def _enter(self, size: int, client: str) -> None:
        if self._count >= self._most_waiting:
            raise QueueFull(
                f"{self._count} large images wait to be decoded: send again after the time in "
                "Retry-After, or smaller images",
                retry_after_s=1.0,
            )
        turn = asyncio.get_running_loop().create_future(), size
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        self._admit()
        try:
            await turn[0]
        except asyncio.CancelledError:
            if turn[0].done() and not turn[0].cancelled():
                # It was let in just then.
                self._leave(size)
            else:
                with suppress(KeyError, ValueError):  # already passed over
                    self._waiting[client].remove(turn)
                    self._count -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        """Let in what fits, from each client in turn."""
        passed = 0
        while passed < len(self._waiting):
            client, turns = next(iter(self._waiting.items()))
            del self._waiting[client]
            if not turns:
                continue
            # The others go first next time.
            self._waiting[client] = turns
            future, size = turns[0]
            if not future.done() and not self._fits(size):
                passed += 1
                continue
            passed = 0
            turns.popleft()
            self._count -= 1
            if future.done():  # its request was given up
                continue
            self._budget.pixels += size
            self._inside += 1
            self._large += size > LARGE
            future.set_result(None)

    def _fits(self, size: int) -> bool:
        if self._inside >= self._most or (size > LARGE and self._large >= self._most_large):
            return False
        budget = self._budget
        return not self._inside or budget.held + budget.pixels + size <= budget.limit
