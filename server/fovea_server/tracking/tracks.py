"""The tracked streams, with limits for their number and their lifetime."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from types import TracebackType

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, InvalidOption, OutOfOrder, QueueFull
from fovea_server.observability.histogram import Family
from fovea_server.tensors.messages import ImageResult
from fovea_server.tracking.tracker import SEES_PIXELS, Tracker, Tuning, check
from fovea_server.traffic.call import CALL

GAP_S = 0.2
"""Time in seconds for which a frame waits for missing earlier frames. These may arrive on another
connection.
"""

# Largest number of remembered frames that failed before earlier frames were tracked. If there are
# more, they are treated as missing.
_MAX_FAILED = 64

MAX_STREAMS = 1000
LONGEST_ID = 200

Key = tuple[str, str, str, str]
"""Key of a stream: name of the API key, model, stream ID, and name of the tracker."""


class FrameOrder:
    """Lets frames pass in the order of their numbers.

    A request has one or several consecutive frames.

    Use it on the event loop only.

    Attributes:
        last: number of the last frame that passed; None before the first frame.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._next = 0
        self._under_way: dict[int, range] = {}
        """Frames of each request in flight, by the number of the request's first frame."""
        self._failed: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def busy(self) -> bool:
        """Return whether requests are in flight."""
        return bool(self._under_way)

    def enter(self, first: int | None, count: int) -> range:
        """Register a request when it arrives. If it has no number, it follows all other requests.

        Args:
            first: number of the request's first frame; None if the client does not number frames.
            count: number of the request's frames.

        Raises:
            OutOfOrder: a later frame has passed, or a frame of this request is in flight already.
        """
        if first is None:
            first = max([self._next, *(each.stop for each in self._under_way.values())])
        frames = range(first, first + count)
        if self.last is not None and first <= self.last:
            raise OutOfOrder(
                f"frame {first} must follow frame {self.last}, the last frame of this stream: "
                f"send frame {self.last + 1} next, or start again with another stream_id"
            )
        for other in self._under_way.values():
            if first < other.stop and other.start < frames.stop:
                raise OutOfOrder(
                    f"frame {first} is already in flight (last finished frame: "
                    f"{'none' if self.last is None else self.last}): give each frame its own "
                    "number"
                )
        self._under_way[first] = frames
        return frames

    async def wait(self, frames: range) -> None:
        """Wait until all earlier frames have passed or failed.

        Wait at most `GAP_S` for missing frames.
        """
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
        """Remove a request after its frames have passed or failed."""
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


class Track:
    """The tracker of one stream, and the order of the stream's frames."""

    def __init__(self, model: str, tracker: str) -> None:
        self.model = model
        self.order = FrameOrder()
        self.used = time.monotonic()
        self._name = tracker
        self._tracker: Tracker | None = None

    def identify(self, results: Sequence[ImageResult | FoveaError], tuning: Tuning) -> int:
        """Add track IDs to the objects in frames.

        Return the number of frames that are not errors.
        """
        tracker = self._tracker = self._tracker or Tracker(self._name)
        frames = 0
        for result in results:
            if isinstance(result, ImageResult) and isinstance(result.found, Detections):
                result.found = tracker.identify(result.found, result.pixels, tuning)
                frames += 1
        return frames


class Tracks:
    """The tracked streams by key. Use this class on the event loop only.

    Args:
        idle_s: time in seconds without a frame after which a stream is removed.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._tracks: OrderedDict[Key, Track] = OrderedDict()
        """The streams in the order of their last use. The stream that was used last is at the end.
        """
        self.frames: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def turn_of(self, model: str, options: PredictOptions, images: int) -> TrackTurn:
        """Return the context manager in which the frames of a request are tracked.

        Raises:
            InvalidOption: the stream ID, the frame number, the tracker or a threshold is invalid.
            InvalidRequest: the packages for tracking are not installed.
        """
        name, stream_id, frame = options.track or "", options.stream_id or "", options.frame
        check(options)
        if not 0 < len(stream_id) <= LONGEST_ID:
            raise InvalidOption(
                "the option track needs a stream_id: a name for the camera or video, with at most "
                f"{LONGEST_ID} characters"
            )
        if frame is not None and frame < 0:
            raise InvalidOption(f"frame is {frame}; it must be a whole number from 0 up")
        call = CALL.get()
        principal = "" if call is None or call.principal is None else call.principal.name
        key = principal, model, stream_id, name
        return TrackTurn(self, key, frame, images, Tuning.of(options))

    def track(self, key: Key) -> Track:
        """Return the state of a stream. If there is none, create it.

        Raises:
            QueueFull: too many streams are tracked.
        """
        self._forget_idle()
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= MAX_STREAMS:
                raise QueueFull(
                    f"the server already tracks {MAX_STREAMS} streams, and the limit is reached: "
                    f"try again when a stream has ended, which takes {self._idle_s:g} s without "
                    "frames (--track-idle-s)",
                    retry_after_s=self._idle_s,
                )
            track = self._tracks[key] = Track(key[1], key[3])
        self._tracks.move_to_end(key)
        track.used = time.monotonic()
        return track

    def forget(self, stream_id: str) -> None:
        """Remove the state of a stream. Frames in flight still use it."""
        for key in [key for key in self._tracks if key[2] == stream_id]:
            del self._tracks[key]

    def _forget_idle(self) -> None:
        until = time.monotonic() - self._idle_s
        idle = list(takewhile(lambda each: each[1].used <= until, self._tracks.items()))
        for key, track in idle:
            if not track.order.busy:
                del self._tracks[key]

    def families(self) -> Iterator[Family]:
        """Return the numbers of streams and frames by model."""
        self._forget_idle()
        now = Counter(track.model for track in self._tracks.values())
        models = sorted({*now, *self.frames, *self.refused})
        for family, counts in (
            (
                Family(
                    "fovea_tracked_streams", "gauge", "Number of streams whose objects are tracked"
                ),
                now,
            ),
            (
                Family("fovea_tracked_frames_total", "counter", "Frames that were tracked"),
                self.frames,
            ),
            (
                Family(
                    "fovea_frames_out_of_order_total",
                    "counter",
                    "Frames that were rejected, because a later frame was already tracked",
                ),
                self.refused,
            ),
        ):
            for model in models:
                family.add({"model": model}, counts[model])
            yield family


class TrackTurn:
    """Context manager in which the frames of one request wait for earlier frames and are tracked.

    Attributes:
        keeps_pixels: True if the tracker needs the upright images.
    """

    def __init__(
        self, tracks: Tracks, key: Key, first: int | None, images: int, tuning: Tuning
    ) -> None:
        self._tuning = tuning
        self.keeps_pixels = key[3] in SEES_PIXELS
        self._tracks, self._key, self._first, self._images = tracks, key, first, images
        self._track: Track
        self._frames: range

    def __enter__(self) -> None:
        self._track = self._tracks.track(self._key)
        try:
            self._frames = self._track.order.enter(self._first, self._images)
        except OutOfOrder:
            self._tracks.refused[self._key[1]] += 1
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._track.order.leave(self._frames)

    async def identify(self, results: Sequence[ImageResult | FoveaError]) -> None:
        """Wait for all earlier frames of the stream, and add track IDs to the objects."""
        track = self._track
        await track.order.wait(self._frames)
        # The thread continues after a cancellation. Wait for it, because the next frame uses the
        # same tracker.
        work = asyncio.ensure_future(asyncio.to_thread(track.identify, results, self._tuning))
        try:
            frames = await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise
        self._tracks.frames[track.model] += frames
