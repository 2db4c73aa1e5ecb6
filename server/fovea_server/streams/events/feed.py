"""The events of one stream: created from its frames, stored in its log, and sent to receivers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import orjson
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted
from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.events.log import EventLog, LoggedEvent
from fovea_server.streams.events.mqtt import Mqtt
from fovea_server.streams.events.sender import Sender, Sink
from fovea_server.streams.events.webhook import Webhook
from fovea_server.streams.scene import Change, ChangeKind, Scene
from fovea_server.streams.zones import Shape
from fovea_server.tensors.messages import ImageResult

_LOOK_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventLogs:
    """The events of all streams.

    Attributes:
        of: function that returns the events of a stream. It raises NotFound if the stream is
            unknown or has no events.
        ending: function that returns whether a response about a stream must end, because the API
            key is no longer valid or the server stops.
    """

    of: Callable[[str], EventFeed]
    ending: Callable[[str], bool]

    async def follow(
        self, stream: str, after: int, kinds: frozenset[str]
    ) -> AsyncIterator[list[LoggedEvent]]:
        """Yield lists of the events with numbers above `after`.

        If there is no event for a second, yield an empty list. If `after` is above the number of
        the newest event, begin after the newest event. A slow reader holds only the last list in
        memory.
        """
        feed = self.of(stream)
        after = min(after, feed.log.last)
        while not (self.ending(stream) or feed.log.closed):
            events = await feed.log.wait(after, _LOOK_S)
            after = events[-1].number if events else after
            yield [each for each in events if not kinds or kind_of(each) in kinds]


def kind_of(event: LoggedEvent) -> str:
    """Return the kind of an event."""
    kind: str = orjson.loads(event.text)["kind"]
    return kind


def kinds_of(given: str) -> frozenset[str]:
    """Parse the kinds of events that a client requests. An empty set means all kinds.

    Raises:
        InvalidOption: a kind is unknown.
    """
    kinds = frozenset(filter(None, given.split(",")))
    for kind in sorted(kinds - set(ChangeKind)):
        close = get_close_matches(kind, ChangeKind, 1)
        meant = f"did you mean '{close[0]}'? " if close else ""
        raise InvalidOption(
            f"unknown kind of event '{kind[:60]}'; {meant}kinds: {', '.join(ChangeKind)}"
        )
    return kinds


def after_of(given: str | None, feed: EventFeed) -> int:
    """Return the number of the last event that a client has.

    If `given` is None, return the number of the newest event. A negative number such as -50
    requests the last 50 events.

    Raises:
        InvalidOption: `given` is not a number.
    """
    if given is None:
        return feed.log.last
    if not re.fullmatch(r"-?[0-9]{1,18}", given):
        raise InvalidOption(
            f"the last event (Last-Event-ID or after) is '{given[:60]}', but must be the number "
            "of an event, or -50 for the last 50 events"
        )
    return max(0, feed.log.last + int(given)) if given.startswith("-") else int(given)


class EventFeed:
    """The events of one stream. Use it on the event loop after `start`.

    Args:
        stream: ID of the stream.
        config: settings of the events.
        folder: directory for the log, the images and the progress of each receiver. It stays after
            the end of this object.

    Attributes:
        log: log of the events.
        images: directory of the event images. The number of images is limited.
        listeners: functions that are called with each event. They must not block.
        live: True if the camera sends frames and the model answers; see `become`.
        senders: senders to receivers, by name.
    """

    def __init__(self, stream: str, config: EventConfig, folder: Path) -> None:
        self.log = EventLog(folder)
        self.images = folder / "images"
        self._stream, self._config = stream, config
        self._scene = Scene(config.shapes, config.debounce_s, config.lost_s)
        self._counted = folder / "counts.json"
        self._read_counts()
        self._picture_fault = ""
        self.listeners: list[Callable[[LoggedEvent], None]] = []
        self.live = False
        self._writing: set[asyncio.Task[None]] = set()
        sinks: list[Sink] = []
        if config.webhook is not None:
            sinks.append(Webhook(stream, config.webhook, config.webhook_secret))
        if config.mqtt is not None:
            sinks.append(Mqtt(stream, config.mqtt, lambda: self._scene.counts, lambda: self.live))
        self.senders = {sink.name: Sender(self.log, sink, folder, stream) for sink in sinks}
        self._sending: dict[str, asyncio.Task[None]] = {}

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of each line and zone by name."""
        return self._scene.counts

    @property
    def fault(self) -> str:
        """Return the reason why events or images are not stored, or "" if there is no problem."""
        if self.log.fault:
            held = counted(self.log.held, "event")
            lost = f", {self.log.lost} lost" if self.log.lost else ""
            return f"events cannot be written ({self.log.fault}): {held} in memory{lost}"
        if self._picture_fault:
            return f"images of events cannot be written ({self._picture_fault})"
        return ""

    @property
    def document(self) -> dict[str, Any]:
        """Return the counts and the states of the receivers, as lists of streams show them."""
        states = {name: sender.document for name, sender in self.senders.items()}
        return {"counts": self.counts, **({"sending": states} if states else {})}

    def see(
        self,
        head: dict[str, Any],
        now_s: float,
        result: ImageResult,
        labels: Sequence[str] | None,
    ) -> None:
        """Process the next frame. This method does not block.

        Args:
            head: fields that all events of this frame contain.
            now_s: time of the frame in seconds: its time in the video, or the time of a monotonic
                clock.
            result: result of the model, including the pixels of the frame.
            labels: names of the classes.
        """
        if self.log.fault:
            self.log.write()
        if isinstance(result.found, Detections):
            size = result.width, result.height
            changes = self._scene.see(result.found, labels, size, now_s)
            self._notify(changes, head, result.pixels)

    def start(self) -> None:
        """Start to send events to receivers, on the event loop."""
        for name, sender in self.senders.items():
            self._sending[name] = asyncio.create_task(sender.run())

    def become(self, *, live: bool) -> None:
        """Store whether the stream is live.

        The senders are woken, so that MQTT publishes the state at once.
        """
        if live != self.live:
            self.live = live
            self.log.wake()

    def over(self) -> None:
        """Report all objects as lost, because no further frame will arrive."""
        self.become(live=False)
        self._notify(self._scene.end(), {}, None)

    async def stop(self) -> None:
        """Stop sending, and close the log. A second call does nothing."""
        self.over()
        sending, self._sending = self._sending, {}
        await asyncio.gather(*(self.senders[name].stop(task) for name, task in sending.items()))
        await self.written()
        self._write_counts()
        self.log.close()

    async def written(self) -> None:
        """Wait until the images of the logged events are written."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _notify(
        self, changes: Sequence[Change], head: dict[str, Any], pixels: NDArray[np.uint8] | None
    ) -> None:
        wanted = [change for change in changes if change.kind in self._config.kinds]
        if pixels is not None and wanted and self._config.images and not self._writing:
            name = f"{self.log.last + 1}.jpg"
            head = {**head, "image": name}
            task = asyncio.create_task(asyncio.to_thread(self._write, name, pixels))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        for change in wanted:
            event = self.log.append(
                {"kind": change.kind, "stream": self._stream, "time": when, **head}
                | _document(change)
            )
            for listener in self.listeners:
                listener(event)
        if any(change.kind is ChangeKind.COUNT for change in changes):
            self._write_counts()

    def _write(self, name: str, pixels: NDArray[np.uint8]) -> None:
        part = self.images / f".{name}.part"
        try:
            self.images.mkdir(0o700, exist_ok=True)
            jpeg = cv2.imencode(".jpg", pixels[..., ::-1])[1]
            try:
                part.write_bytes(jpeg.tobytes())
                part.replace(self.images / name)
            finally:
                part.unlink(missing_ok=True)
            for old in sorted(self.images.glob("*.jpg"))[: -self._config.images]:
                old.unlink()
            self._picture_fault = ""
        except OSError as error:
            fault = error.strerror or str(error)
            if not self._picture_fault:
                log.error("stream %s: images of events cannot be written: %s", self._stream, fault)
            self._picture_fault = fault

    def _read_counts(self) -> None:
        """Restore the stored counts of lines whose settings have not changed."""
        counts: dict[str, dict[str, int]] = {}
        try:
            kept = orjson.loads(self._counted.read_bytes())
            for line in self._lines:
                before = kept.get(line.name, {})
                if before.get("line") == line.text:
                    counts[line.name] = {key: int(before[key]) for key in ("in", "out")}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "stream %s: the counts of its lines restart at 0, because the stored counts "
                "cannot be read: %s",
                self._stream,
                error,
            )
        self._scene.go_on(counts)

    def _write_counts(self) -> None:
        counts = self.counts
        kept = {line.name: {"line": line.text, **counts[line.name]} for line in self._lines}
        part = self._counted.with_suffix(".part")
        # If the disk is full, the counts are written after the next change or at the end.
        with suppress(OSError):
            part.write_bytes(orjson.dumps(kept))
            part.replace(self._counted)

    @property
    def _lines(self) -> list[Shape]:
        return [shape for shape in self._config.shapes if shape.kind == "line"]


def _document(change: Change) -> dict[str, Any]:
    subject = change.subject
    given: dict[str, Any] = {
        "name": change.shape,
        "direction": change.direction,
        "duration_s": None if change.time_s is None else round(change.time_s, 3),
        "counts": change.counts,
    }
    if subject is not None:
        x1, y1, x2, y2 = (round(each, 2) for each in subject.box)
        given |= {
            "track_id": subject.track_id,
            "class_id": subject.class_id,
            "class_name": subject.class_name,
            "score": round(subject.score, 5),
            "box": {"x1": x1, "y1": y1, "x2": x2, "y2": y2},
        }
    return {key: value for key, value in given.items() if value not in (None, "", {})}
