"""All streams whose objects have ids: a bounded number of them, and each for a bounded time."""

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
from fovea_server.observability.family import Family
from fovea_server.tensors.image_messages import ImageResult
from fovea_server.tracking.frame_order import FrameOrder
from fovea_server.tracking.tracker import SEES_PIXELS, Tracker, Tuning, check
from fovea_server.traffic.call import CALL

MAX_STREAMS = 1000
LONGEST_ID = 200

Key = tuple[str, str, str, str]
"""Name of the API key, model, stream_id and tracker: what must not mix."""


class Track:
    """The state of one stream."""

    def __init__(self, model: str, tracker: str) -> None:
        self.model = model
        self.order = FrameOrder()
        self.used = time.monotonic()
        self._name = tracker
        self._tracker: Tracker | None = None

    def identify(self, results: Sequence[ImageResult | FoveaError], tuning: Tuning) -> int:
        """Give the objects on frames their ids, and return how many frames those were."""
        tracker = self._tracker = self._tracker or Tracker(self._name)
        frames = 0
        for result in results:
            if isinstance(result, ImageResult) and isinstance(result.found, Detections):
                result.found = tracker.identify(result.found, result.pixels, tuning)
                frames += 1
        return frames


class Tracks:
    """The streams by their keys; it belongs to the event loop.

    Args:
        idle_s: a stream without a frame for so long is forgotten.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._tracks: OrderedDict[Key, Track] = OrderedDict()
        """The one that was used last is last."""
        self.frames: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def turn_of(self, model: str, options: PredictOptions, images: int) -> TrackTurn:
        """Make the turn of a request; raises as `check`, and InvalidOption."""
        name, stream_id, frame = options.track or "", options.stream_id or "", options.frame
        check(options)
        if not 0 < len(stream_id) <= LONGEST_ID:
            raise InvalidOption(
                "track needs a stream_id, which names the camera or video of the frame, in at most "
                f"{LONGEST_ID} characters"
            )
        if frame is not None and frame < 0:
            raise InvalidOption(f"frame is {frame}; it must be a whole number from 0 up")
        call = CALL.get()
        principal = "" if call is None or call.principal is None else call.principal.name
        key = principal, model, stream_id, name
        return TrackTurn(self, key, frame, images, Tuning.of(options))

    def track(self, key: Key) -> Track:
        """Find the state of a stream, or begin it; QueueFull: there are too many."""
        self._forget_idle()
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= MAX_STREAMS:
                raise QueueFull(
                    f"{MAX_STREAMS} streams are tracked already: stop sending to some, and their "
                    f"ids are forgotten after {self._idle_s:g} s (--track-idle-s)",
                    retry_after_s=self._idle_s,
                )
            track = self._tracks[key] = Track(key[1], key[3])
        self._tracks.move_to_end(key)
        track.used = time.monotonic()
        return track

    def forget(self, stream_id: str) -> None:
        """Drop the state of a stream, whose frames under way go on with it."""
        for key in [key for key in self._tracks if key[2] == stream_id]:
            del self._tracks[key]

    def _forget_idle(self) -> None:
        until = time.monotonic() - self._idle_s
        idle = list(takewhile(lambda each: each[1].used <= until, self._tracks.items()))
        for key, track in idle:
            if not track.order.busy:
                del self._tracks[key]

    def families(self) -> Iterator[Family]:
        """Count streams and frames by model."""
        self._forget_idle()
        now = Counter(track.model for track in self._tracks.values())
        models = sorted({*now, *self.frames, *self.refused})
        for family, counts in (
            (Family("fovea_tracked_streams", "gauge", "Streams whose objects have ids"), now),
            (
                Family("fovea_tracked_frames_total", "counter", "Frames that were tracked"),
                self.frames,
            ),
            (
                Family(
                    "fovea_frames_out_of_order_total",
                    "counter",
                    "Frames that were refused, as a later one had been tracked",
                ),
                self.refused,
            ),
        ):
            for model in models:
                family.add({"model": model}, counts[model])
            yield family


class TrackTurn:
    """The place of one request's frames among those of its stream, while it is entered.

    Attributes:
        keeps_pixels: the tracker looks at the upright images.
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
        """Wait for the turn, and give the objects their ids."""
        track = self._track
        await track.order.wait(self._frames)
        # The thread goes on where the request is cancelled, and the next frame must wait for it.
        work = asyncio.ensure_future(asyncio.to_thread(track.identify, results, self._tuning))
        try:
            frames = await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise
        self._tracks.frames[track.model] += frames
