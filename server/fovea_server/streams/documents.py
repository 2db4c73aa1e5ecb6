"""The OpenAPI schemas of streams: settings, and documents in lists.

`StreamConfig` parses settings without these schemas, because its error messages are better. A test
compares both.
"""

from __future__ import annotations

from dataclasses import fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import SkipJsonSchema

from fovea_engines.results.options import PredictOptions
from fovea_server.http.v1.openapi import describe_route
from fovea_server.streams.cameras.config import OPTIONS

StreamId = Annotated[str, Path(description="id of the stream", examples=["door"])]

Absent = SkipJsonSchema[None]
"""Type of a key that may be absent."""

_TYPES = get_type_hints(PredictOptions)


def _of_option(name: str) -> Any:
    kinds = get_args(_TYPES[name])
    return kinds[0] if NoneType in kinds else _TYPES[name]


_FIELDS: dict[str, Any] = {
    option.name: (
        _of_option(option.name) | Absent,
        Field(None, description=option.metadata["description"]),
    )
    for option in fields(PredictOptions)
    if option.name in OPTIONS
}


class StreamChange(create_model("_Options", **_FIELDS)):  # type: ignore[misc]
    """Settings to change. A value of null removes a setting."""

    model_config = ConfigDict(extra="forbid")

    source: str | Absent = Field(None, description="rtsp://, rtsps:// or http:// (MJPEG)")
    model: str | Absent = Field(None, description="name of the model")
    enabled: bool | Absent = Field(None, description="false stops it; it stays in the list")
    every: str | Absent = Field(None, description="mean time between two frames: 200ms, 2s")
    fps: float | Absent = Field(None, description="in place of every: frames a second")
    transport: Literal["tcp", "udp"] | Absent = Field(None, description="of RTSP")
    track: str | Absent = Field(None, description="ids: bytetrack, sort, ocsort, botsort")
    lines: list[str] | Absent = Field(None, description="NAME=x,y,x,y; see docs/how-to/streams.md")
    zones: list[str] | Absent = Field(None, description="NAME=x,y,x,y,x,y...:after=30s")
    events: list[str] | Absent = Field(None, description="kinds of events, default all")
    debounce: str | Absent = Field(None, description="time until something counts: 300ms")
    lost_after: str | Absent = Field(None, description="time until an object is lost: 2s")
    event_images: int | Absent = Field(None, description="most pictures of events that are kept")


class StreamSettings(StreamChange):
    """The settings of a new stream."""

    id: str = Field(description="letters, digits, '.', '_' and '-', up to 64")
    source: str = Field(description="rtsp://, rtsps:// or http:// (MJPEG)")
    model: str = Field(description="name of the model")


class FrameCounts(BaseModel):
    """Numbers of frames of a stream, by the outcome of the frames."""

    came: int
    dropped: int = Field(description="a newer one replaced them before the model had time")
    broken: int = Field(description="could not be decoded, and were skipped")
    answered: int
    refused: int = Field(description="the model did not answer them")


class Sending(BaseModel):
    """The state of a receiver of events."""

    sent: int = Field(description="events that it has taken since the stream began")
    waiting: int = Field(description="events that are not delivered yet")
    missed: int = Field(description="events that were dropped while the receiver was down")
    refused: int = Field(description="events that were dropped after repeated rejections")
    refusal: str = Field(description="the last dropped event, and the reason; empty without one")
    reason: str = Field(description="the reason for the wait; empty without one")


class StreamStatus(StreamSettings):
    """A stream: its settings without passwords, and its state."""

    model_config = ConfigDict(extra="ignore")

    webhook: str | Absent = Field(None, description="host and port of the receiver")
    mqtt: str | Absent = Field(None, description="host and port of the broker")
    of_file: bool = Field(description="true if streams.toml defines the stream: change it there")
    state: Literal["connecting", "live", "waiting", "refused", "stopped", "ended", "failed"]
    reason: str = Field(description="the reason for a problem; empty without one")
    rate: float = Field(description="responses a second")
    age_ms: float | None = Field(
        description="from capture to answer, of the newest frame; null after the end of a file"
    )
    objects: int = Field(description="on the newest frame")
    tracked: int | Absent = Field(
        None, description=("with track: number of these objects with a track id")
    )
    frames: FrameCounts
    reconnects: int
    counts: dict[str, dict[str, int]] | Absent = Field(
        None, description='by name: of a line "in" and "out", of a zone "objects"'
    )
    sending: dict[str, Sending] | Absent = Field(None, description='"webhook" and "mqtt"')


class StreamList(BaseModel):
    """All streams."""

    streams: list[StreamStatus]


class Removed(BaseModel):
    """The stream was removed."""


_SETTINGS = {
    "id": "door",
    "source": "rtsp://USER:PASSWORD@CAMERA/STREAM",
    "model": "yolov8n",
    "every": "200ms",
    "lines": ["door=0.1,0.6,0.9,0.6:classes=person"],
}
_ONE = {
    **{**_SETTINGS, "source": "rtsp://CAMERA/STREAM"},
    **{"of_file": False, "state": "live", "reason": "", "rate": 4.9, "age_ms": 71.2, "objects": 2},
    "frames": {"came": 510, "dropped": 12, "broken": 0, "answered": 498, "refused": 0},
    "reconnects": 0,
    "counts": {"door": {"in": 3, "out": 1}},
}
_EXAMPLES: dict[type[BaseModel], Any] = {
    StreamStatus: _ONE,
    StreamList: {"streams": [_ONE]},
    Removed: {},
    StreamSettings: _SETTINGS,
    StreamChange: {"zones": ["yard=0,0.5,1,0.5,1,1,0,1:after=30s"], "fps": None},
}


def described_stream(
    name: str,
    answer: type[BaseModel],
    *errors: int,
    body: type[BaseModel] | None = None,
    status: int = 200,
) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, with the schema of the body and examples."""
    made = describe_route(name, answer, 403, *errors)
    made["responses"][status] = {"content": _json(answer)}
    if body is not None:
        schema = body.model_json_schema()
        content = {"application/json": {"schema": schema, **_json(body)["application/json"]}}
        made["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return made | {"status_code": status}


def described_bytes(name: str, text: str, *media: str, **queries: str) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a response that is not JSON.

    `queries` are descriptions of query parameters by name.
    """
    made = describe_route(name, Removed, 403, 404)
    schema = {"type": "string", "format": "binary"}
    content = {each: {"schema": schema} for each in media}
    made["responses"][200] = {"description": text, "content": content}
    parameters = [
        {"name": key, "in": "query", "description": each, "schema": {"type": "string"}}
        for key, each in queries.items()
    ]
    made |= {"response_model": None, "response_class": Response}
    return made | {"openapi_extra": {"parameters": parameters}}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"examples": {"stream": {"value": _EXAMPLES[model]}}}}
