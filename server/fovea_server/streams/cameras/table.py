"""The streams of a server: the streams in streams.toml and the streams of clients."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any

from fovea_preprocess.errors import (
    AlreadyExists,
    FetchRefused,
    FoveaError,
    InvalidOption,
    NotFound,
)
from fovea_server.dataplane.reach import EVERYWHERE, Reach
from fovea_server.dataplane.service import Service
from fovea_server.observability.histogram import Family
from fovea_server.streams.cameras.config import StreamConfig
from fovea_server.streams.cameras.picture import NewestPicture
from fovea_server.streams.cameras.stream import (
    CameraStream,
    Turns,
    cancel_and_wait,
    failed_document,
)
from fovea_server.streams.events.config import ADDRESSES
from fovea_server.streams.events.feed import EventFeed
from fovea_server.streams.frames.address import check_reach
from fovea_server.streams.frames.reader import require_av
from fovea_server.traffic.call import CALL

log = logging.getLogger(__name__)

MAX_STREAMS = 64
FILE = "streams.toml"
"""Name of the operator's file. If the file is invalid, the list of streams shows the error under
this ID.
"""
_LOOK_S = 1.0


class StreamTable:
    """Runs streams. Use it on the event loop only.

    The operator writes `streams.toml` in the repository. It is read again when it changes, and may
    name files and devices. The server stores the streams of clients in `streams.json` in the same
    directory, and starts them again after a restart. Only the server's user may read this file,
    because it contains passwords. A request with an API key sees only the streams of the key's
    models.

    Args:
        service: service with the data plane and the settings.
        forget: function that is called with the name of the track IDs of an ended stream.
    """

    def __init__(self, service: Service, forget: Callable[[str], None]) -> None:
        self._settings, self._plane = service.settings, service.plane
        self._drawing, self._turns = service.drawing, Turns(service.models)
        self._budget, self._forget = service.budget, forget
        places = self._settings.model_repository
        folder = next((each for each in places if isinstance(each, Path)), None)
        self._toml = None if folder is None else folder / FILE
        self._kept = None if folder is None else folder / "streams.json"
        self._events = None if folder is None else folder / ".streams"
        self._running: dict[str, tuple[CameraStream, asyncio.Task[None]]] = {}
        self._pictures: dict[str, NewestPicture] = {}
        self._of_file: dict[str, Any] = {}
        self._of_clients: dict[str, Any] = {}
        self._failed: dict[str, str] = {}
        """Reasons why streams did not start, or did not start with their newest settings."""
        # Ending a stream takes time. The lock prevents another stream with the same ID from
        # starting before the end.
        self._changing = asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all streams, and begin to watch streams.toml."""
        self._of_clients = _read_json(self._kept)
        await self._follow()
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Stop all streams."""
        if self._looking is not None:
            await cancel_and_wait(self._looking)
        await asyncio.gather(*map(self._end, list(self._running)))

    def documents(self) -> list[dict[str, Any]]:
        """Return the documents of all streams, sorted by ID, including streams that cannot run."""
        return [
            self._document(name) for name in sorted(self._names) if _sees(self._find_given(name))
        ]

    def document(self, name: str) -> dict[str, Any]:
        """Return the document of a stream.

        Raises:
            NotFound: no stream has this ID.
        """
        self.model_of(name)
        return self._document(name)

    def _document(self, name: str) -> dict[str, Any]:
        of_file, reason = name not in self._of_clients, self._failed.get(name, "")
        if name in self._running:
            document = self._running[name][0].document
            document["reason"] = document["reason"] or reason
        else:
            document = failed_document(name, self._find_given(name), reason)
        return {**document, "of_file": of_file}

    def model_of(self, name: str) -> str:
        """Return the name of a stream's model.

        Raises:
            NotFound: no stream has this ID, not even one that does not run.
        """
        given = self._find_given(name)
        if name not in self._names or not _sees(given):
            raise NotFound(f"unknown stream '{name[:64]}': see GET /v1/streams for all streams")
        return model_in(given)

    @property
    def _names(self) -> set[str]:
        return {*self._running, *self._failed, *self._of_clients}

    def _find_given(self, name: str) -> Mapping[str, Any]:
        """Return the settings of a stream, even if it does not run.

        If they cannot be read, return {}.
        """
        if name in self._running:
            return self._running[name][0].config.given
        given = self._of_clients.get(name, self._of_file.get(name))
        return given if isinstance(given, dict) else {}

    def get(self, name: str) -> CameraStream:
        """Return a running stream.

        Raises:
            NotFound: no stream has this ID, or it does not run.
        """
        self.model_of(name)
        if name not in self._running:
            raise NotFound(
                f"stream '{name}' is not running: {self._failed.get(name, 'it is starting')}"
            )
        return self._running[name][0]

    def picture(self, name: str) -> NewestPicture:
        """Return the object that draws the images of a running stream.

        Raises:
            NotFound: no stream has this ID, or it does not run.
        """
        self.get(name)
        return self._pictures[name]

    def feed(self, name: str) -> EventFeed:
        """Return the events of a running stream.

        Raises:
            NotFound: no stream has this ID, it does not run, or it has no events.
        """
        feed = self.get(name).feed
        if feed is None:
            raise NotFound(
                f"stream {name} records no events: set lines, zones or events in its settings"
            )
        return feed

    async def add(self, name: str, given: Mapping[str, Any]) -> None:
        """Start a stream for a client, and store its settings.

        Raises:
            InvalidOption: a setting is invalid, or too many streams run.
            FetchRefused: the source is not allowed.
            AlreadyExists: a stream has this ID.
            NotFound: the model does not exist.
        """
        async with self._changing:
            if name in self._names:
                raise AlreadyExists(f"stream '{name}' exists already: change it with PATCH")
            self._begin(config := await self._check_client_config(name, given))
            self._keep(name, config)

    async def change(self, name: str, given: Mapping[str, Any]) -> None:
        """Restart a client's stream with changed settings. A value of None removes a setting.

        Raises:
            InvalidOption, FetchRefused, NotFound: see `add`.
            AlreadyExists: the stream is defined in streams.toml.
        """
        async with self._changing:
            merged = {**self._find_client_stream(name), **given}
            merged = {key: value for key, value in merged.items() if value is not None}
            config = await self._check_client_config(name, merged)
            before = await self._end(name)
            try:
                self._begin(config)
            except FoveaError:
                if before is not None:
                    self._begin(before.config)
                raise
            self._keep(name, config)

    async def remove(self, name: str) -> None:
        """Stop a client's stream, and delete its settings and events.

        Raises:
            NotFound: no stream has this ID.
            AlreadyExists: the stream is defined in streams.toml.
        """
        async with self._changing:
            self._find_client_stream(name)
            await self._end(name)
            self._keep(name, None)
            if self._events is not None:
                await asyncio.to_thread(shutil.rmtree, self._events / name, ignore_errors=True)

    def _find_client_stream(self, name: str) -> dict[str, Any]:
        self.model_of(name)
        if name not in self._of_clients:
            raise AlreadyExists(f"stream '{name}' is defined in streams.toml: change it there")
        given: dict[str, Any] = self._of_clients[name]
        return given

    def _check_config(self, name: str, given: Mapping[str, Any]) -> StreamConfig:
        require_av()
        config = StreamConfig.parse(name, given)
        if config.address.kind in ("rtsp", "http") and not self._settings.allow_url:
            raise FetchRefused(
                "this server does not open URLs: start it with --allow-url, and also with "
                "--url-allow-private if clients add cameras on the local network"
            )
        most = int(1e6 * self._settings.max_megapixels)
        return replace(config, reading=replace(config.reading, most_pixels=most))

    async def _check_client_config(self, name: str, given: Mapping[str, Any]) -> StreamConfig:
        config = self._check_config(name, given)
        if config.address.kind in ("file", "device"):
            raise FetchRefused(
                "a client cannot add a stream from a file or a device: define the stream in "
                "streams.toml"
            )
        if any(given.get(key) is not None for key in ADDRESSES):
            raise FetchRefused(
                f"a client cannot set {' or '.join(ADDRESSES)}: define the stream in streams.toml"
            )
        config.check(self._plane.models)
        await asyncio.to_thread(check_reach, config.address, Reach.of(self._settings))
        return config

    def _begin(self, config: StreamConfig) -> None:
        if len(self._running) >= MAX_STREAMS:
            raise InvalidOption(
                f"the server already runs {MAX_STREAMS} streams, and the limit is reached: remove "
                "one"
            )
        # The operator's streams may open every address. Clients' streams may open only the
        # addresses that the settings allow.
        of_file = config.id in self._of_file and config.id not in self._of_clients
        reach = EVERYWHERE if of_file else Reach.of(self._settings)
        feed = self._feed(config)
        stream = CameraStream(config, self._plane, self._turns, reach=reach, feed=feed)
        # Start the task in a new context. The stream lives longer than the request that created it,
        # and must not use the request's ID and key.
        task = asyncio.create_task(stream.run(), context=Context())
        self._running[config.id] = stream, task
        self._pictures[config.id] = NewestPicture(stream, self._drawing)
        self._failed.pop(config.id, None)

    def _feed(self, config: StreamConfig) -> EventFeed | None:
        if config.events is None:
            return None
        if self._events is None:
            raise InvalidOption(
                "events need a local model repository to store their files: serve models from a "
                "local directory"
            )
        try:
            return EventFeed(config.id, config.events, self._events / config.id)
        except OSError as error:
            raise InvalidOption(
                f"the events of stream {config.id} cannot be written to {self._events}: "
                f"{error.strerror}"
            ) from None

    async def _end(self, name: str) -> CameraStream | None:
        """Stop a stream and return it, or return None if it does not run."""
        self._failed.pop(name, None)
        if name not in self._running:
            return None
        stream, task = self._running.pop(name)
        del self._pictures[name]
        await cancel_and_wait(task)
        stream.close()
        self._forget(stream.tracked_as)
        if stream.feed is not None:
            await stream.feed.stop()
        # Return free memory to the system. Decoders leave gaps of tens of megabytes in the heaps,
        # which later frames do not use.
        if stream.config.enabled:
            self._budget.gave_much_back()
        return stream

    def _keep(self, name: str, config: StreamConfig | None) -> None:
        # Only this stream's settings change. The other entries of the file stay, even if their
        # streams could not start.
        self._of_clients.pop(name, None)
        if config is not None:
            self._of_clients[name] = dict(config.given)
        if self._kept is None:
            return
        part = self._kept.with_name(".streams.json.part")
        try:
            part.touch(0o600)
            part.write_text(json.dumps(self._of_clients, indent=2))
            part.replace(self._kept)
        except OSError as error:
            log.warning(
                "clients' streams will not start again after a restart, because %s cannot be "
                "written (%s)",
                self._kept,
                error.strerror,
            )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._follow()

    async def _follow(self) -> None:
        """Read streams.toml if it has changed, and start streams that do not run yet.

        If the new settings of a stream are invalid, the stream keeps its old settings. If the file
        cannot be read, nothing changes.
        """
        stamp = None
        if self._toml is not None:
            with suppress(OSError):
                file = self._toml.stat()
                stamp = file.st_mtime_ns, file.st_size
        wanted = {*self._of_file, *self._of_clients}
        if stamp == self._stamp and not self._failed and wanted <= self._running.keys():
            return
        async with self._changing:
            if stamp != self._stamp:
                self._stamp = stamp
                self._read()
            for name in {*self._running, *self._failed} - {*self._of_file, *self._of_clients, FILE}:
                await self._end(name)
            for name, given in self._of_clients.items():
                if name not in self._running:
                    await self._try(name, given)
            for name, given in self._of_file.items():
                if name not in self._of_clients:
                    await self._try(name, given)
                elif name in self._running:
                    self._fail(
                        name,
                        "a client has added a stream with this ID: delete the client's stream, or "
                        "choose another ID",
                    )

    def _read(self) -> None:
        try:
            there = None if self._stamp is None else self._toml
            text = "" if there is None else there.read_text("utf-8-sig")
            self._of_file = tomllib.loads(text)
            self._failed.pop(FILE, None)
        except (OSError, ValueError) as error:
            self._fail(FILE, f"the file cannot be read: {error}")

    async def _try(self, name: str, given: object) -> None:
        try:
            if not isinstance(given, dict):
                raise InvalidOption(
                    f"the key '{name[:60]}' is outside the table of a stream: write [ID], with "
                    "the stream's ID, above its settings"
                )
            config = self._check_config(name, given)
            if name in self._running and self._running[name][0].config == config:
                self._failed.pop(name, None)
                return
            await self._end(name)
            self._begin(config)
        except FoveaError as error:
            self._fail(name, str(error))

    def _fail(self, name: str, reason: str) -> None:
        if self._failed.get(name) != reason:
            file = FILE if name in {*self._of_file, FILE} else "streams.json"
            log.error("%s: [%s]: %s", file, name[:64], reason)
        self._failed[name] = reason

    def families(self) -> Iterator[Family]:
        """Return the numbers of streams by state, frames by stream, and events by receiver."""
        states = Family("fovea_streams", "gauge", "Streams by state")
        now = Counter(one.state[0] for one, _ in self._running.values())
        now["failed"] += len(self._failed.keys() - self._running.keys())
        for state, count in now.items():
            states.add({"state": state}, count)
        frames = Family("fovea_stream_frames_total", "counter", "Frames of streams by outcome")
        age = Family(
            "fovea_stream_frame_age_seconds",
            "gauge",
            "Time from the arrival of the last processed frame to its result, in seconds",
        )
        events = Family("fovea_stream_events_total", "counter", "Events by outcome")
        waiting = Family(
            "fovea_stream_events_waiting", "gauge", "Events not yet delivered to a receiver"
        )
        up = Family("fovea_stream_sink_up", "gauge", "1 if the receiver accepts events, else 0")
        crossings = Family("fovea_stream_crossings_total", "counter", "Objects that crossed a line")
        inside = Family("fovea_stream_zone_objects", "gauge", "Objects in a zone")
        for name, (stream, _) in self._running.items():
            for what, count in stream.document["frames"].items():
                frames.add({"stream": name, "frames": what}, count)
            if stream.age_s is not None:
                age.add({"stream": name}, stream.age_s)
            for receiver, sender in (stream.feed.senders if stream.feed else {}).items():
                labels = {"stream": name, "receiver": receiver}
                events.add({**labels, "events": "sent"}, sender.sent)
                events.add({**labels, "events": "missed"}, sender.missed)
                events.add({**labels, "events": "refused"}, sender.refused)
                waiting.add(labels, sender.waiting)
                up.add(labels, int(not sender.reason))
            if stream.feed is not None:
                labels = {"stream": name, "receiver": "disk"}
                events.add({**labels, "events": "missed"}, stream.feed.log.lost)
                waiting.add(labels, stream.feed.log.held)
                up.add(labels, int(not stream.feed.fault))
                _add_counts(name, stream.feed.counts, crossings, inside)
        return iter((states, frames, age, events, waiting, up, crossings, inside))


def _add_counts(
    stream: str, counts: Mapping[str, Mapping[str, int]], crossings: Family, inside: Family
) -> None:
    """Add the counts of a stream's lines ("in" and "out") and zones ("objects")."""
    for shape, numbers in counts.items():
        for what, number in numbers.items():
            if what == "objects":
                inside.add({"stream": stream, "zone": shape}, number)
            else:
                crossings.add({"stream": stream, "line": shape, "direction": what}, number)


def _sees(given: Mapping[str, Any]) -> bool:
    """Return whether the API key of the current request allows the model of a stream."""
    call = CALL.get()
    return call is None or call.principal is None or call.principal.takes(model_in(given))


def model_in(given: Mapping[str, Any]) -> str:
    """Return the model in the settings of a stream, or "" if it is missing or not a text."""
    model = given.get("model")
    return model if isinstance(model, str) else ""


def _read_json(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None or not file.exists():
        return {}
    try:
        given = json.loads(file.read_text("utf-8"))
        return {name: each for name, each in given.items() if isinstance(each, dict)}
    except (OSError, ValueError, AttributeError) as error:
        log.warning("%s cannot be read, and its streams do not run: %s", file, error)
        return {}
