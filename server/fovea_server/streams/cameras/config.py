"""The settings of one stream, parsed from JSON, streams.toml or the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlencode

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.models import Models
from fovea_server.http.v1.request_head import query_options
from fovea_server.streams.events.config import KEYS as EVENT_KEYS
from fovea_server.streams.events.config import EventConfig, hide_secrets
from fovea_server.streams.frames.address import SourceAddress
from fovea_server.streams.frames.reader import SourceSettings
from fovea_server.streams.zones import seconds
from fovea_server.tracking.tracker import check

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN = ("source", "model", "enabled", "every", "fps", "transport", "track")
# Prediction options that a stream sets itself for each frame, so users may not set them.
_NOT = ("stream_id", "frame", "track")
OPTIONS = tuple(each.name for each in fields(PredictOptions) if each.name not in _NOT)
KEYS = (*_OWN, *EVENT_KEYS, *OPTIONS)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The settings of a stream.

    Attributes:
        id: ID of the stream.
        enabled: False for a stream that does not run and is only listed.
        model: name of the model.
        address: address of the camera or file.
        reading: settings for reading the source.
        options: prediction options.
        track: name of the tracker; None for no tracking.
        events: settings of the events; None for no events. If they are set, objects are tracked.
        given: settings as the user wrote them, including the password in `source`.
    """

    id: str
    enabled: bool
    model: str
    address: SourceAddress
    reading: SourceSettings
    options: PredictOptions
    track: str | None
    events: EventConfig | None
    given: Mapping[str, Any]

    @classmethod
    def parse(cls, stream_id: str, given: Mapping[str, Any]) -> StreamConfig:
        """Parse the settings of a stream.

        Raises:
            InvalidOption: a key is unknown, missing or invalid; the message names it.
        """
        if not _ID.fullmatch(stream_id):
            raise InvalidOption(
                f"'{stream_id[:64]}' is not a valid stream ID: use up to 64 letters, digits, '.', "
                "'_' and '-', and begin with a letter or digit"
            )
        for key in given:
            if key not in KEYS:
                close = get_close_matches(key, KEYS, 1)
                meant = f"did you mean '{close[0]}'? " if close else ""
                raise InvalidOption(
                    f"unknown key '{key[:60]}' of a stream; {meant}keys: {', '.join(KEYS)}"
                )
        for key in ("source", "model"):
            if not isinstance(given.get(key), str) or not given[key]:
                raise InvalidOption(
                    f"stream {stream_id} needs the key {key} with a text as its value"
                )
        enabled = given.get("enabled", True)
        if not isinstance(enabled, bool):
            raise InvalidOption(f"enabled is '{str(enabled)[:60]}'; it must be true or false")
        events = EventConfig.parse(given)
        track = given.get("track", None if events is None else "bytetrack")
        transport = given.get("transport", "tcp")
        if transport not in ("tcp", "udp"):
            raise InvalidOption(f"transport is '{str(transport)[:60]}'; it must be tcp or udp")
        options = {
            key: _text(given[key]) for key in OPTIONS if key in given and given[key] is not None
        }
        if track is not None:
            options |= {"track": str(track), "stream_id": stream_id}
        parsed = query_options(urlencode(options))
        if track is not None:
            check(parsed)
        return cls(
            stream_id,
            enabled,
            given["model"],
            SourceAddress.parse(given["source"]),
            SourceSettings(every_s=_every(given), transport=transport),
            parsed,
            None if track is None else str(track),
            events,
            dict(given),
        )

    def check(self, models: Models) -> None:
        """Check that the settings fit the model. If the model is not ready, check nothing.

        Raises:
            InvalidOption: streams do not support the task of the model, or the model lacks a class
                in the settings.
            NotFound, ModelNotReady, Forbidden: see `Models.get`.
        """
        served = models.get(self.model)
        engine = served.engine
        if served.reason:
            return
        task = served.task if served.takes_images else "tensors"
        if engine is None or task in ("tensors", "embed"):
            raise InvalidOption(
                f"a stream cannot use model '{self.model}', whose task is {task}: choose a model "
                "for detection, classification, segmentation or text"
            )
        engine.resolve(self.tracked_as(self.id))
        for shape in () if self.events is None else self.events.shapes:
            try:
                engine.resolve(PredictOptions(classes=shape.unknown(engine.labels)))
            except InvalidOption as error:
                raise InvalidOption(f"{shape.kind} {shape.name}: {error}") from None

    @property
    def shown(self) -> dict[str, Any]:
        """Return the settings as lists show them, without user name and password."""
        return {"id": self.id, **hide_secrets(self.given), "source": self.address.shown}

    def tracked_as(self, name: str) -> PredictOptions:
        """Return the prediction options for the stream's frames.

        The tracker stores the stream's track IDs under `name`.
        """
        return self.options if self.track is None else replace(self.options, stream_id=name)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _every(given: Mapping[str, Any]) -> float:
    every, fps = given.get("every"), given.get("fps")
    if every is not None and fps is not None:
        raise InvalidOption("every and fps are both set: remove one of them")
    if fps is not None:
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
            raise InvalidOption(
                f"fps is '{str(fps)[:60]}', but must be a number of frames per second, above 0 "
                "and up to 1000"
            )
        return 1 / fps
    return 0.0 if every is None else seconds("every", every)
