"""One stream: runs a model on the frames of a camera, and passes the results to subscribers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound, Unavailable
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.dataplane.reach import Reach
from fovea_server.streams.cameras.config import StreamConfig
from fovea_server.streams.events.feed import EventFeed
from fovea_server.streams.frames.address import SourceAddress
from fovea_server.streams.frames.camera import Camera, Frame, SourceState
from fovea_server.tensors.messages import ImageResult
from fovea_server.tracking.tracker import Tracker, Tuning

log = logging.getLogger(__name__)

_RATE_OF = 30
# Number of frames. If objects are found on this number of frames but none gets a track ID, the
# stream's document has the reason.
_UNTRACKED = 10


class Turns:
    """Limits how many frames of all streams a model processes at once.

    The limit is the number of frames that the model can process in parallel. When it is a stream's
    turn, the stream takes its newest frame, so frames do not become old in a queue. If there are
    more frames than the model can process, streams and clients share the model equally.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._places: dict[tuple[str, int], asyncio.Semaphore] = {}

    def of(self, name: str) -> AbstractAsyncContextManager[object]:
        """Return a context manager that waits until a frame may be passed to a model.

        If the model is missing, it does not wait.
        """
        try:
            engine = self._models.get(name).engine
        except FoveaError:
            return nullcontext()
        if engine is None:
            return nullcontext()
        session = engine.session
        most = session.concurrency * (session.max_batch if session.offloads else 1)
        return self._places.setdefault((name, most), asyncio.Semaphore(most))


@dataclass(frozen=True, slots=True, eq=False)
class SeenFrame:
    """A frame with the result of the model.

    Attributes:
        stream: ID of the stream.
        number: number of the frame, counted from 0. Only frames that the model answered are
            counted.
        pts_s: time of the frame in the stream in seconds; None if the source has no times.
        age_s: time from the arrival of the frame to the result, in seconds.
        result: result of the model, including the `pixels` of the frame.
        vocabulary: names of the classes.
        text: data of the frame and its result as JSON.
    """

    stream: str
    number: int
    pts_s: float | None
    age_s: float
    result: ImageResult
    vocabulary: Vocabulary
    text: bytes

    @property
    def found(self) -> TaskResult | None:
        """Return the decoded result, or None if the head of the model is unknown."""
        return self.result.found


Subscriber = Callable[[SeenFrame], None]
"""Function that is called on the event loop with each frame, in order. It must not block."""


class CameraStream:
    """Runs a model on the frames of a camera. Call `run` in a task.

    Attributes:
        subscribers: functions that are called with every frame.
        answered: number of frames that the model answered.
        refused: number of frames that the model rejected or failed to answer.
        age_s: age of the newest result in seconds; None before the first.
        newest: newest frame with a result, from which images are drawn.
        over: True if no further frame will arrive.
        tracked_as: name under which the data plane stores the stream's track IDs.
        feed: events of the stream; None if the stream has none.
    """

    def __init__(
        self,
        config: StreamConfig,
        plane: DataPlane,
        turns: Turns,
        *,
        reach: Reach,
        feed: EventFeed | None = None,
    ) -> None:
        self.config = config
        self.subscribers: list[Subscriber] = []
        self.answered = self.refused = 0
        self.age_s: float | None = None
        self.newest: SeenFrame | None = None
        self.over = False
        self.objects = self.tracked = 0
        self._tuning = Tuning.of(config.options)
        self._untracked = _Untracked()
        self.feed = feed
        if feed is not None:
            self.subscribers.append(self._notify)
        self._plane = plane
        self._camera = Camera(
            config.address,
            config.reading,
            reach=reach,
            changed=self._log,
            turn=lambda: turns.of(config.model),
        )
        self._fault = self._fault_state = self._outside = ""
        self._size = (0, 0)
        self._lost = False
        self._times: deque[float] = deque(maxlen=_RATE_OF)
        # A random part makes the name unique. Each start of the stream thus gets new track IDs, and
        # clients cannot change them.
        self.tracked_as = f"/v1/streams/{config.id}/{secrets.token_hex(8)}"
        self._options = config.tracked_as(self.tracked_as)

    async def run(self) -> None:
        """Run the model on each frame until a file ends.

        For a camera, run until the task is cancelled.
        """
        if self.config.enabled:
            await self._run()
        self.over = True

    def close(self) -> None:
        """Release all large objects after `run` has ended."""
        self.over = True
        # Release the frame now. Stream and camera refer to each other, so the garbage collector may
        # free them much later.
        self.newest = None
        self.subscribers.clear()

    async def _run(self) -> None:
        if self.config.track is not None:
            # Import the tracker before the first frame, so that the import does not delay the first
            # results. An error of the import is reported with the first frame.
            with suppress(Exception):
                await asyncio.to_thread(Tracker, self.config.track)
        if self.feed is not None:
            self.feed.start()
        async with aclosing(self._camera.frames()) as frames:
            async for frame in frames:
                self._camera.again = await self._waits_for_model(frame)
        if self.feed is not None:
            self.feed.over()

    async def _waits_for_model(self, frame: Frame) -> bool:
        """Run the model on a frame, and return whether the source must repeat the frame.

        A file repeats the frame until the model accepts it. A camera continues with the next frame.
        """
        try:
            await self._see(frame)
            self._fail("")
        except Exception as error:
            # These errors stay until the operator changes something. Then the stream continues.
            hopeless = isinstance(error, (NotFound, InvalidOption))
            if not self.config.address.live and (hopeless or isinstance(error, Unavailable)):
                self._fail(str(error), "failed" if hopeless else "waiting")
                return True
            self.refused += 1
            if hopeless:
                self._fail(str(error), "failed")
                return False
            known = isinstance(error, FoveaError)
            if not known and not self._fault:
                log.exception("stream %s", self.config.id)
            self._fail(
                str(error) if known else (f"a frame could not be processed: {type(error).__name__}")
            )
        return False

    async def _see(self, frame: Frame) -> None:
        # Look up the model for each frame, because it may have been loaded again.
        model = self._plane.models.get(self.config.model)
        self._plane.models.check_ready(self.config.model)
        self.config.check(self._plane.models)
        answer = await self._plane.predict(
            PredictRequest(model, None, [frame.image], self._options, encode=_encode)
        )
        (result,) = answer.images
        if isinstance(result, FoveaError):
            raise result
        if self.feed is not None:
            self.feed.become(live=True)
        result.pixels = frame.image.pixels
        self._check_shapes(result.width, result.height)
        now = time.monotonic()
        self._times.append(now)
        self.age_s = now - frame.came
        self._count_objects(result.found)
        head = {
            "stream": self.config.id,
            "model": self.config.model,
            "frame": self.answered,
            "time_s": _round(frame.pts_s),
            "age_ms": round(1e3 * self.age_s, 1),
        }
        text = orjson.dumps(head)[:-1] + b"," + result.encoded[1:]
        seen = SeenFrame(
            self.config.id,
            self.answered,
            frame.pts_s,
            self.age_s,
            result,
            answer.vocabulary,
            text,
        )
        self.newest = seen
        self.answered += 1
        for subscriber in self.subscribers:
            subscriber(seen)

    def _check_shapes(self, width: int, height: int) -> None:
        """Log the lines and zones that extend beyond the image.

        The image size is known only from a frame.
        """
        if (width, height) == self._size:
            return
        self._size = width, height
        shapes = () if self.config.events is None else self.config.events.shapes
        names = [f"{each.kind} {each.name}" for each in shapes if each.leaves(width, height)]
        self._outside = ""
        if names:
            verb = "extends" if len(names) == 1 else "extend"
            self._outside = (
                f"{' and '.join(names)} {verb} beyond the image of {width} x {height} pixels: use "
                "other points, or fractions such as 0.5"
            )
            log.warning("stream %s: %s", self.config.id, self._outside)

    def _count_objects(self, found: TaskResult | None) -> None:
        self.objects = self.tracked = 0
        if not isinstance(found, Detections):
            return
        self.objects = len(found)
        if found.track_ids is not None:
            self.tracked = int((found.track_ids > 0).sum())
            before = self._untracked.reason(self._tuning)
            self._untracked.see(found, self.tracked)
            if (reason := self._untracked.reason(self._tuning)) and not before:
                log.warning("stream %s: %s", self.config.id, reason)

    def _notify(self, seen: SeenFrame) -> None:
        assert self.feed is not None
        now_s = time.monotonic() - seen.age_s
        if not self.config.address.live and seen.pts_s is not None:
            now_s = seen.pts_s
        head = {"frame": seen.number, "time_s": _round(seen.pts_s)}
        self.feed.see(head, now_s, seen.result, seen.vocabulary.labels)

    def _fail(self, reason: str, state: str = "refused") -> None:
        if reason and not self._fault:
            log.warning("stream %s: %s", self.config.id, reason)
        self._fault, self._fault_state = reason, state
        if reason and self.feed is not None:
            self.feed.become(live=False)

    def _log(self) -> None:
        camera = self._camera
        if self.feed is not None and camera.state is not SourceState.LIVE:
            self.feed.become(live=False)
        lost = camera.state in (SourceState.WAITING, SourceState.FAILED)
        # The camera is tried repeatedly. Only the first failure is logged as a warning, later
        # failures for debugging.
        again = self._lost and (lost or camera.state is SourceState.CONNECTING)
        self._lost = lost or again
        log.log(
            logging.DEBUG if again else logging.WARNING if lost else logging.INFO,
            "stream %s from %s is %s%s",
            self.config.id,
            self.config.address.shown,
            camera.state,
            f": {camera.reason}" if camera.reason else "",
        )

    @property
    def state(self) -> tuple[str, str]:
        """Return the state and the reason for the state.

        The reason is "" if there is no problem.
        """
        if not self.config.enabled:
            return "stopped", ""
        if self._fault and self._camera.state in (SourceState.LIVE, SourceState.ENDED):
            return self._fault_state, self._fault
        kept = "" if self.feed is None else self.feed.fault
        untracked = self._untracked.reason(self._tuning)
        reasons = (self._camera.reason, kept, self._outside, untracked)
        return self._camera.state.value, "; ".join(filter(None, reasons))

    @property
    def document(self) -> dict[str, Any]:
        """Return the document of the stream, as lists of streams show it."""
        state, reason = self.state
        times, camera = self._times, self._camera
        spent = time.monotonic() - times[0] if times else 0.0
        age_s = None if state == SourceState.ENDED.value else self.age_s
        return {
            **self.config.shown,
            "state": state,
            "reason": reason,
            "rate": round(len(times) / spent, 2) if len(times) > 1 and spent else 0.0,
            "age_ms": None if age_s is None else round(1e3 * age_s, 1),
            "objects": self.objects,
            **({} if self.config.track is None else {"tracked": self.tracked}),
            "frames": {
                "came": camera.came,
                "dropped": camera.dropped,
                "broken": camera.broken,
                "answered": self.answered,
                "refused": self.refused,
            },
            "reconnects": camera.reconnects,
            **(self.feed.document if self.feed is not None else {}),
        }


class _Untracked:
    """Detects a stream in which objects are found but none of them gets a track ID."""

    def __init__(self) -> None:
        self._frames, self._best = 0, 0.0

    def see(self, found: Detections, tracked: int) -> None:
        if tracked:
            self._frames, self._best = 0, 0.0
        elif len(found):
            self._frames += 1
            self._best = max(self._best, float(found.scores.max()))

    def reason(self, tuning: Tuning) -> str:
        """Return the reason why no object has a track ID.

        If an object has a track ID, or too few frames have been seen, return "".
        """
        if self._frames < max(_UNTRACKED, 2 * tuning.min_frames):
            return ""
        text = f"the model found objects on {self._frames} frames, but no object got a track ID"
        if self._best < tuning.new:
            return (
                f"{text}: the best score is {self._best:.2f}, but a new track needs "
                f"{tuning.new:.2f}; lower track_new or conf"
            )
        return (
            f"{text}: a track needs an object on {tuning.min_frames} frames in a row, without "
            "large jumps; raise fps, or lower min_frames or conf"
        )


def _round(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, 3)


def _encode(result: ImageResult, vocabulary: Vocabulary, options: PredictOptions) -> bytes:
    answer: dict[str, Any] = {"width": result.width, "height": result.height}
    if result.found is not None:
        answer |= result.found.to_json(vocabulary, options)
    return orjson.dumps(answer)


def failed_document(stream_id: str, given: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the document of a stream that does not run, from the settings that can be parsed.

    If `reason` is "", the stream has not started yet.
    """
    source = ""
    with suppress(InvalidOption):
        source = SourceAddress.parse(str(given.get("source", ""))).shown
    return {
        **{"id": stream_id, "source": source, "model": str(given.get("model", ""))},
        **{"state": "failed" if reason else "connecting", "reason": reason, "rate": 0.0},
        **{"age_ms": None, "objects": 0, "reconnects": 0},
        "frames": dict.fromkeys(("came", "dropped", "broken", "answered", "refused"), 0),
    }


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task of a stream, and wait until it ends."""
    task.cancel()
    await asyncio.wait([task])
