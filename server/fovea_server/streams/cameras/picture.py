"""The newest frame of a stream as a JPEG file, with results, trails and counts drawn on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing

import cv2
import numpy as np

from fovea_engines.drawing.drawing import draw, encode
from fovea_server.streams.cameras.overlay import Trails, draw_counts, draw_shapes, draw_trails
from fovea_server.streams.cameras.stream import CameraStream, SeenFrame
from fovea_server.streams.zones import Point, Shape

_RATE = 5.0
_LOOK_S = 0.05
_WIDEST = 1280
MJPEG = "multipart/x-mixed-replace; boundary=frame"
_PART = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n--frame\r\n"


class NewestPicture:
    """Draws a few images per second at most, once for all viewers, and none without viewers.

    Use it on the event loop only.

    Args:
        stream: stream whose frames are drawn.
        drawing: semaphore that limits how many streams draw at the same time.
    """

    def __init__(self, stream: CameraStream, drawing: asyncio.Semaphore) -> None:
        self._stream, self._drawing = stream, drawing
        self._trails = Trails()
        if stream.config.track is not None:
            stream.subscribers.append(lambda seen: self._trails.see(seen.found, seen.number))
        self._turn = asyncio.Lock()
        self._next = 0.0
        self._seen: SeenFrame | None = None
        self._jpeg: bytes | None = None

    async def jpeg(self) -> bytes | None:
        """Return the newest frame, or a slightly older frame, as JPEG.

        Before the first frame, return None.
        """
        async with self._turn:
            seen = self._stream.newest
            if seen is not None and seen is not self._seen and time.monotonic() >= self._next:
                self._next = time.monotonic() + 1 / _RATE
                events, feed = self._stream.config.events, self._stream.feed
                shapes = () if events is None else events.shapes
                counts = {} if feed is None else feed.counts
                arguments = seen, self._trails.points, shapes, counts
                async with self._drawing:
                    self._jpeg = await asyncio.to_thread(_draw, *arguments)
                self._seen = seen
        return self._jpeg

    async def pictures(
        self, ending: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes, None]:
        """Yield JPEG images until the stream is over or `ending` returns True.

        If the reader is slow, some images are skipped.
        """
        last = None
        while not ending():
            jpeg = await self.jpeg()
            if jpeg is not None and jpeg is not last:
                last = jpeg
                yield jpeg
            elif self._stream.over and self._stream.newest in (None, self._seen):
                return
            await asyncio.sleep(_LOOK_S)


async def mjpeg(
    picture: NewestPicture, ending: Callable[[], bool] = lambda: False
) -> AsyncIterator[bytes]:
    """Yield the body of a response of the type `MJPEG`."""
    async with aclosing(picture.pictures(ending)) as coming:
        # Send the next boundary now, because browsers show an image only after they have received
        # the boundary behind it.
        yield b"--frame\r\n"
        async for jpeg in coming:
            yield _PART % (len(jpeg), jpeg)


def _draw(
    seen: SeenFrame,
    trails: Mapping[int, Sequence[Point]],
    shapes: Sequence[Shape],
    counts: Mapping[str, Mapping[str, int]],
) -> bytes:
    assert seen.result.pixels is not None
    canvas = seen.result.pixels.copy()
    draw_shapes(canvas, shapes)
    draw_trails(canvas, trails)
    if seen.found is not None:
        canvas = draw(seen.found, canvas, seen.vocabulary)
    draw_counts(canvas, shapes, counts)
    height, width = canvas.shape[:2]
    if width > _WIDEST:
        size = _WIDEST, round(height * _WIDEST / width)
        canvas = np.asarray(cv2.resize(canvas, size, interpolation=cv2.INTER_AREA), np.uint8)
    return encode(canvas, "image/jpeg")
