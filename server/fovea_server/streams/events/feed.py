"""The events of one stream: made of its frames, kept in its log, and sent."""

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
        of: finds those of a stream; NotFound: there is no such stream, or it has none.
        ending: whether an answer about a stream must end: its key, or the server, is going.
    """

    of: Callable[[str], EventFeed]
    ending: Callable[[str], bool]

    async def follow(
        self, stream: str, after: int, kinds: frozenset[str]
    ) -> AsyncIterator[list[LoggedEvent]]:
        """Yield the events behind a number as they come, every second, also if there are none.

        A number behind the newest begins there. Who reads slowly is waited for here, and holds
        these events alone.
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
    """Read the kinds that a client wants, none for all; InvalidOption: there is no such kind."""
    kinds = frozenset(filter(None, given.split(",")))
    for kind in sorted(kinds - set(ChangeKind)):
        close = get_close_matches(kind, ChangeKind, 1)
        meant = f"did you mean '{close[0]}'? " if close else ""
        raise InvalidOption(
            f"'{kind[:60]}' is not a kind of event; {meant}kinds: {', '.join(ChangeKind)}"
        )
    return kinds


def after_of(given: str | None, feed: EventFeed) -> int:
    """Return the number of the last event that a client has; without one it begins now.

    A client that has none may ask for the last ones: -50.
    """
    if given is None:
        return feed.log.last
    if not re.fullmatch(r"-?[0-9]{1,18}", given):
        raise InvalidOption(
            f"the last event is '{given[:60]}'; it must be the number of an event, or -50 for the "
            "last 50"
        )
    return max(0, feed.log.last + int(given)) if given.startswith("-") else int(given)


class EventFeed:
    """Belongs to one stream, and to the event loop once it is started.

    Attributes:
        log: of the events.
        images: folder of their pictures, bounded in number.
        listeners: called with each event; they must not wait.
        live: the camera sends, and the model answers; see `become`.
        senders: to receivers, by name.

    Args:
        stream: its id.
        folder: for its log, its pictures, and how far each receiver is; it outlives the feed.
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
        """The counts of each line and zone, by name."""
        return self._scene.counts

    @property
    def fault(self) -> str:
        """Why events or their pictures are not kept; "" while all is well."""
        if self.log.fault:
            held = counted(self.log.held, "event")
            lost = f", {self.log.lost} are lost" if self.log.lost else ""
            return f"its events are not written ({self.log.fault}): {held} in memory{lost}"
        if self._picture_fault:
            return f"the pictures of its events are not written ({self._picture_fault})"
        return ""

    @property
    def document(self) -> dict[str, Any]:
        """Counts, and the states of receivers, as listings have them."""
        states = {name: sender.document for name, sender in self.senders.items()}
        return {"counts": self.counts, **({"sending": states} if states else {})}

    def see(
        self,
        head: dict[str, Any],
        now_s: float,
        result: ImageResult,
        labels: Sequence[str] | None,
    ) -> None:
        """Take the next frame; it waits for nothing.

        Args:
            head: what its events say of it.
            now_s: its time: in a video, or of a clock that only goes on.
            result: with the pixels of the frame.
            labels: names of classes.
        """
        if self.log.fault:
            self.log.write()
        if isinstance(result.found, Detections):
            size = result.width, result.height
            changes = self._scene.see(result.found, labels, size, now_s)
            self._notify(changes, head, result.pixels)

    def start(self) -> None:
        """Begin to send, on the event loop."""
        for name, sender in self.senders.items():
            self._sending[name] = asyncio.create_task(sender.run())

    def become(self, *, live: bool) -> None:
        """Note whether frames are seen; receivers that keep a state get it at once."""
        if live != self.live:
            self.live = live
            self.log.wake()

    def over(self) -> None:
        """Lose the objects: there are no more frames."""
        self.become(live=False)
        self._notify(self._scene.end(), {}, None)

    async def stop(self) -> None:
        """End; it may be stopped already."""
        self.over()
        sending, self._sending = self._sending, {}
        await asyncio.gather(*(self.senders[name].stop(task) for name, task in sending.items()))
        await self.written()
        self._write_counts()
        self.log.close()

    async def written(self) -> None:
        """Wait for the pictures of the events in the log."""
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
                log.error("stream %s: pictures of events are lost: %s", self._stream, fault)
            self._picture_fault = fault

    def _read_counts(self) -> None:
        """Go on with the counts of lines that are as they were."""
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
            log.warning("stream %s: its counts begin again: %s", self._stream, error)
        self._scene.go_on(counts)

    def _write_counts(self) -> None:
        counts = self.counts
        kept = {line.name: {"line": line.text, **counts[line.name]} for line in self._lines}
        part = self._counted.with_suffix(".part")
        # Without room on the disk, they are written with the next count, or at the end.
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
