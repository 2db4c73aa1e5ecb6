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

    source: str | Absent = Field(
        None, description="URL of the camera: rtsp://, rtsps:// or http:// (MJPEG)"
    )
    model: str | Absent = Field(None, description="name of the model")
    enabled: bool | Absent = Field(
        None, description="false stops the stream, which stays in the list"
    )
    every: str | Absent = Field(None, description="mean time between two frames, e.g. 200ms or 2s")
    fps: float | Absent = Field(None, description="frames per second, as an alternative to `every`")
    transport: Literal["tcp", "udp"] | Absent = Field(
        None, description="transport protocol of RTSP: tcp or udp"
    )
    track: str | Absent = Field(
        None, description="tracker that gives ids to objects: bytetrack, sort, ocsort or botsort"
    )
    lines: list[str] | Absent = Field(
        None, description="lines NAME=x,y,x,y; see docs/how-to/streams.md"
    )
    zones: list[str] | Absent = Field(
        None, description="zones NAME=x,y,x,y,x,y..., e.g. with :after=30s"
    )
    events: list[str] | Absent = Field(None, description="kinds of events; default all")
    debounce: str | Absent = Field(None, description="time until a change counts, e.g. 300ms")
    lost_after: str | Absent = Field(
        None, description="time until an unseen object is lost, e.g. 2s"
    )
    event_images: int | Absent = Field(None, description="largest number of kept event images")


class StreamSettings(StreamChange):
    """The settings of a new stream."""

    id: str = Field(description="id of the stream: up to 64 letters, digits, '.', '_' and '-'")
    source: str = Field(description="URL of the camera: rtsp://, rtsps:// or http:// (MJPEG)")
    model: str = Field(description="name of the model")


class FrameCounts(BaseModel):
    """Numbers of frames of a stream, by the outcome of the frames."""

    came: int
    dropped: int = Field(
        description="number of frames that a newer frame replaced before the model was free"
    )
    broken: int = Field(description="number of frames that could not be decoded and were skipped")
    answered: int
    refused: int = Field(description="number of frames that the model rejected")


class Sending(BaseModel):
    """The state of a receiver of events."""

    sent: int = Field(
        description="number of events that the receiver accepted since the stream began"
    )
    waiting: int = Field(description="number of events that are not delivered yet")
    missed: int = Field(
        description="number of events that were dropped while the receiver was down"
    )
    refused: int = Field(description="number of events that were dropped after repeated rejections")
    refusal: str = Field(description="last dropped event and the reason; empty if none was dropped")
    reason: str = Field(description="reason why events wait; empty if none waits")


class StreamStatus(StreamSettings):
    """A stream: its settings without passwords, and its state."""

    model_config = ConfigDict(extra="ignore")

    webhook: str | Absent = Field(None, description="host and port of the receiver")
    mqtt: str | Absent = Field(None, description="host and port of the broker")
    of_file: bool = Field(description="true if streams.toml defines the stream: change it there")
    state: Literal["connecting", "live", "waiting", "refused", "stopped", "ended", "failed"]
    reason: str = Field(description="reason for a problem; empty if there is none")
    rate: float = Field(description="responses per second")
    age_ms: float | None = Field(
        description=(
            "milliseconds from the capture of the newest frame to its result; null after "
            "the end of a file"
        )
    )
    objects: int = Field(description="number of objects on the newest frame")
    tracked: int | Absent = Field(
        None, description=("with track: number of these objects with a track id")
    )
    frames: FrameCounts
    reconnects: int
    counts: dict[str, dict[str, int]] | Absent = Field(
        None, description='counts by name: "in" and "out" of a line, "objects" of a zone'
    )
    sending: dict[str, Sending] | Absent = Field(
        None, description='state of the receivers "webhook" and "mqtt"'
    )


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
