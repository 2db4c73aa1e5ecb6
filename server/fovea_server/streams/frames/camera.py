"""Reads a source for the event loop.

New frames replace older frames, and lost cameras reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from fovea_preprocess.errors import FetchRefused
from fovea_preprocess.image import DecodedImage
from fovea_preprocess.text import counted
from fovea_server.dataplane.reach import Reach
from fovea_server.streams.frames.address import SourceAddress, opened_at
from fovea_server.streams.frames.reader import FrameReader, RawFrame, SourceFailed, SourceSettings

log = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_AGAIN_S = 0.2


class SourceState(StrEnum):
    """The state of a source."""

    CONNECTING = "connecting"
    LIVE = "live"
    WAITING = "waiting"
    """The source was lost. The next attempt to connect follows after a pause."""
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame of a source.

    Attributes:
        image: upright pixels.
        number: number of the frame, counted from 0. Frames that were dropped are not counted.
        pts_s: time of the frame in the stream in seconds; None if the source has no times.
        came: time at which the frame arrived, from `time.monotonic`.
    """

    image: DecodedImage
    number: int
    pts_s: float | None
    came: float


class Camera:
    """The frames of a source. One coroutine iterates over `frames`.

    Args:
        address: address of the camera or file.
        reading: settings for reading the source.
        reach: hosts that the server may open.
        changed: function that is called when the state changes.
        turn: function that returns a context manager. It is entered before a frame is taken, and
            left when the next frame is requested. If entering it takes long, a newer frame is
            taken.

    Attributes:
        state: state of the source.
        reason: reason why the source is not live; "" if it is live.
        came: number of frames that arrived.
        dropped: number of frames that a newer frame replaced before they were taken.
        broken: number of skipped packets, which could not be decoded.
        reconnects: number of times that the camera was lost.
        again: the consumer sets it to True to receive the same frame again after a pause.
    """

    def __init__(
        self,
        address: SourceAddress,
        reading: SourceSettings,
        *,
        reach: Reach,
        changed: Callable[[], None] = lambda: None,
        turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self.address, self.reading = address, reading
        self._reach, self._changed, self._turn = reach, changed, turn
        self.state, self.reason = SourceState.CONNECTING, ""
        self.came = self.dropped = self.broken = self.reconnects = 0
        self.again = False
        self._taken = 0

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield frames until a file ends or cannot be read.

        A camera is reconnected without a limit.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            self._become(SourceState.CONNECTING, self.reason)
            try:
                address = await opened_at(self.address, self._reach)
                async with aclosing(self._read_connection(address)) as coming:
                    async for frame in coming:
                        wait_s = _FIRST_WAIT_S
                        yield frame
                lacking = f", and {counted(self.broken, 'frame')} could not be decoded"
                self._become(
                    SourceState.ENDED, f"the file has ended{lacking if self.broken else ''}"
                )
                return
            except (SourceFailed, FetchRefused) as error:
                if not self.address.live:
                    self._become(SourceState.FAILED, str(error))
                    return
                self.reconnects += 1
                self._become(SourceState.WAITING, str(error))
            except Exception as error:
                reason = f"the source cannot be read: {type(error).__name__}"
                if reason != self.reason:
                    log.exception("%s (%s)", reason, self.address.shown)
                if not self.address.live:
                    self._become(SourceState.FAILED, reason)
                    return
                self.reconnects += 1
                self._become(SourceState.WAITING, reason)
            # Random pauses, so that cameras that were lost at the same time do not reconnect at the
            # same time.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _read_connection(self, address: SourceAddress) -> AsyncGenerator[Frame, None]:
        slot = _Slot(asyncio.get_running_loop(), waits=not address.live)
        reader = FrameReader(address, self.reading, slot.put, slot.skip, slot.end)
        limit = self.reading.open_s
        reader.start()
        try:
            while True:
                await slot.wait_until_filled(limit if address.live else None)
                limit = max(self.reading.stall_s, 3 * self.reading.every_s)
                async with self._turn():
                    raw = slot.take()
                    self._count(slot)
                    if raw is None:
                        return
                    self._become(SourceState.LIVE, "")
                    image = await asyncio.to_thread(_decode, raw)
                    # The age of a file's frame begins now, because the time in which it waited for
                    # its turn does not count.
                    came = raw.came if address.live else time.monotonic()
                    yield (frame := Frame(image, self._taken, raw.pts_s, came))
                while self.again:
                    # Wait outside the turn, so that other streams can use the model.
                    self.again = False
                    await asyncio.sleep(_AGAIN_S)
                    async with self._turn():
                        yield replace(frame, came=time.monotonic())
                self._taken += 1
        finally:
            reader.stopped.set()
            slot.close()
            self._count(slot)

    def _count(self, slot: _Slot) -> None:
        came, dropped, broken = slot.take_counts()
        self.came, self.dropped = self.came + came, self.dropped + dropped
        self.broken += broken

    def _become(self, state: SourceState, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self._changed()


def _decode(raw: RawFrame) -> DecodedImage:
    pixels = np.asarray(raw.picture.to_ndarray(format="rgb24"), np.uint8)
    # Videos of phones and some cameras contain the rotation of the device.
    turns = round(getattr(raw.picture, "rotation", 0) / 90) % 4
    upright = np.ascontiguousarray(np.rot90(pixels, turns) if turns else pixels)
    upright.flags.writeable = False
    return DecodedImage(upright, 1)


class _Slot:
    """Passes one frame from the reading thread to the event loop.

    If `waits` is True, the reading thread waits until a frame was taken. Otherwise a newer frame
    replaces a frame that was not taken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, waits: bool) -> None:
        self._loop, self._waits = loop, waits
        self._lock = threading.Condition()
        self._there = asyncio.Event()
        self._frame: RawFrame | None = None
        self._over = self._closed = False
        self._reason: SourceFailed | None = None
        self._came = self._dropped = self._broken = 0

    def put(self, frame: RawFrame) -> None:
        """Store a frame. The reading thread calls this method."""
        with self._lock:
            while self._waits and self._frame is not None and not self._closed:
                self._lock.wait()
            self._came += 1
            self._dropped += self._frame is not None
            self._frame = frame
            self._wake()

    def skip(self) -> None:
        """Count a packet that cannot be decoded. The reading thread calls this method."""
        with self._lock:
            self._broken += 1

    def end(self, reason: SourceFailed | None) -> None:
        """Store that no further frame follows. The reading thread calls this method."""
        with self._lock:
            self._over, self._reason = True, reason
            self._wake()

    def _wake(self) -> None:
        # The event loop may be closed already if `close` was called.
        if not self._closed:
            self._loop.call_soon_threadsafe(self._there.set)

    async def wait_until_filled(self, limit_s: float | None) -> None:
        """Wait until a frame arrives or the source ends.

        Raises:
            SourceFailed: neither happens within `limit_s` seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not self._is_filled():
                    await self._there.wait()
        except TimeoutError:
            raise SourceFailed(f"no frame arrived for {limit_s:g} s") from None

    def _is_filled(self) -> bool:
        with self._lock:
            self._there.clear()
            return self._frame is not None or self._over

    def take(self) -> RawFrame | None:
        """Return the stored frame, or None after the last frame of a file.

        Raises:
            SourceFailed: the source failed, and no frame is stored.
        """
        with self._lock:
            frame, self._frame = self._frame, None
            self._lock.notify()
        if frame is None and self._reason is not None:
            raise self._reason
        return frame

    def take_counts(self) -> tuple[int, int, int]:
        """Return the numbers of arrived, dropped and broken frames since the last call."""
        with self._lock:
            counts = self._came, self._dropped, self._broken
            self._came = self._dropped = self._broken = 0
        return counts

    def close(self) -> None:
        """Release the reading thread if it waits, so that it can end."""
        with self._lock:
            self._closed = True
            self._lock.notify()
