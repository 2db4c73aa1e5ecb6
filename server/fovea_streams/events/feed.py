"""The events of one stream: made of its frames, kept in its log, and sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_server.tensors.image_messages import ImageResult
from fovea_streams.events.config import EventConfig
from fovea_streams.events.log import EventLog, LoggedEvent
from fovea_streams.events.mqtt import Mqtt
from fovea_streams.events.sender import Sender, Sink
from fovea_streams.events.webhook import Webhook
from fovea_streams.zones.change import Change
from fovea_streams.zones.scene import Scene

log = logging.getLogger(__name__)


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
        if isinstance(result.found, Detections):
            size = result.width, result.height
            changes = self._scene.see(result.found, labels, size, now_s)
            self._tell(changes, head, result.pixels)

    def start(self) -> None:
        """Begin to send, on the event loop."""
        for name, sender in self.senders.items():
            self._sending[name] = asyncio.create_task(sender.run())

    def become(self, *, live: bool) -> None:
        """Say whether frames are seen; receivers that keep a state are told at once."""
        if live != self.live:
            self.live = live
            self.log.wake()

    def over(self) -> None:
        """Lose the objects: there are no more frames."""
        self.become(live=False)
        self._tell(self._scene.end(), {}, None)

    async def stop(self) -> None:
        """End; it may be stopped already."""
        self.over()
        sending, self._sending = self._sending, {}
        await asyncio.gather(*(self.senders[name].stop(task) for name, task in sending.items()))
        await self.written()
        self.log.close()

    async def written(self) -> None:
        """Wait for the pictures of the events in the log."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _tell(
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
            try:
                event = self.log.append(
                    {"kind": change.kind, "stream": self._stream, "time": when, **head}
                    | _document(change)
                )
            except OSError as error:
                log.error("stream %s: an event is lost: %s", self._stream, error)
                continue
            for listener in self.listeners:
                listener(event)

    def _write(self, name: str, pixels: NDArray[np.uint8]) -> None:
        try:
            self.images.mkdir(0o700, exist_ok=True)
            jpeg = cv2.imencode(".jpg", pixels[..., ::-1])[1]
            (self.images / name).write_bytes(jpeg.tobytes())
            for old in sorted(self.images.glob("*.jpg"))[: -self._config.images]:
                old.unlink()
        except OSError as error:
            log.error("stream %s: the picture of an event is lost: %s", self._stream, error)


def _document(change: Change) -> dict[str, Any]:
    subject = change.subject
    given: dict[str, Any] = {
        "name": change.shape,
        "direction": change.direction,
        "duration_s": None if change.time_s is None else round(change.time_s, 3),
        "counts": change.counts,
    }
    if subject is not None:
        given |= {"track_id": subject.track_id, "label": subject.label}
        given["box"] = [round(each, 1) for each in subject.box]
    return {key: value for key, value in given.items() if value not in (None, "", {})}
