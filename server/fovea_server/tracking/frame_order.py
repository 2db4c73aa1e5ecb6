"""The order in which the frames of a stream are tracked, however they arrive."""

from __future__ import annotations

import asyncio

from fovea_preprocess.errors import OutOfOrder

GAP_S = 0.2
"""A frame waits so long for those that are missing before it: they may be on another connection."""

# Of frames that failed before those in front of them arrived: more are as if they were missing.
_MAX_FAILED = 64


class FrameOrder:
    """Lets frames pass in the order of their numbers; a request has one or several, in a row.

    It belongs to the event loop.

    Attributes:
        last: number of the last frame that passed; None before the first.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._next = 0
        self._under_way: dict[int, range] = {}
        """By the first number of each request."""
        self._failed: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def busy(self) -> bool:
        """True while frames are under way."""
        return bool(self._under_way)

    def enter(self, first: int | None, count: int) -> range:
        """Announce a request, as soon as it arrives; without a number it follows all others.

        Raises:
            OutOfOrder: a later frame has passed, or the same one is under way.
        """
        if first is None:
            first = max([self._next, *(each.stop for each in self._under_way.values())])
        frames = range(first, first + count)
        if self.last is not None and first <= self.last:
            raise OutOfOrder(
                f"frame {first} comes after frame {self.last}, the last one seen of this stream: "
                f"go on with {self.last + 1}, or choose another stream_id to begin again"
            )
        for other in self._under_way.values():
            if first < other.stop and other.start < frames.stop:
                raise OutOfOrder(
                    f"frame {first} is under way already; the last one seen of this stream is "
                    f"{'none' if self.last is None else self.last}: number the frames one by one"
                )
        self._under_way[first] = frames
        return frames

    async def wait(self, frames: range) -> None:
        """Wait until all frames before these are over, or do not come within `GAP_S`."""
        loop, until = asyncio.get_running_loop(), None
        while True:
            left = None
            if min(self._under_way) == frames.start:
                until = until or loop.time() + GAP_S
                left = until - loop.time()
                if frames.start == self._next or left <= 0:
                    break
            woken = self._waiting[frames.start] = loop.create_future()
            await asyncio.wait([woken], timeout=left)
        self.last = frames.stop - 1
        self._go_on_from(frames.stop)

    def leave(self, frames: range) -> None:
        """End a request, whether its frames have passed or not."""
        del self._under_way[frames.start]
        self._waiting.pop(frames.start, None)
        if frames.start >= self._next and len(self._failed) < _MAX_FAILED:
            self._failed.update(frames)
            self._go_on_from(self._next)
        if self._under_way:
            woken = self._waiting.get(min(self._under_way))
            if woken is not None and not woken.done():
                woken.set_result(None)

    def _go_on_from(self, number: int) -> None:
        self._next = number
        while self._next in self._failed:
            self._next += 1
        self._failed = {each for each in self._failed if each > self._next}
