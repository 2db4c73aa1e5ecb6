"""Promotions as OpenAPI describes them: what is sent, and the history that is answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from fovea_server.http.v1.openapi import described

Absent = SkipJsonSchema[None]
_WHO = "for the history; with a key it is the name of the key"
_WHY = "for the history"


class Rollback(BaseModel):
    """Back to the version before."""

    model_config = ConfigDict(extra="forbid")

    who: str | Absent = Field(None, description=_WHO)
    why: str | Absent = Field(None, description=_WHY)


class Promotion(Rollback):
    """The version that is to be current."""

    version: int = Field(ge=1)
    canary: float | Absent = Field(
        None, description="at first it answers this share of the requests: 0.001 to 0.5"
    )
    seconds: float | Absent = Field(None, description="of a canary; default 600")
    max_p99: float | Absent = Field(
        None, description="of a canary: its p99 may be longer by this part of the current version's"
    )
    max_disagreement: float | Absent = Field(
        None, description="of a canary: part of the images that may have other results"
    )


class HistoryEvent(BaseModel):
    """A change of the current version, or of a canary."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    at: datetime
    who: str = Field(description="name of the key, or of the user")
    action: Literal["promote", "rollback", "canary", "canary_passed", "canary_failed"]
    version: str = Field(description="that is current from then on, or the canary")
    previous: str = Field(description="that was current, or the canary that was ended")
    why: str
    share: float | Absent = Field(None, description="of the requests, and more of a canary")
    seconds: float | Absent = None
    max_p99: float | Absent = None
    max_disagreement: float | Absent = None


class CanaryFigures(BaseModel):
    """A canary that runs, and the current version beside it, as this server has seen them."""

    version: str
    until: datetime = Field(description="when it becomes current, unless it fails")
    answered: int
    failed: int
    p99_ms: float | Absent = None
    current_answered: int
    current_failed: int
    current_p99_ms: float | Absent = None


class ModelHistory(BaseModel):
    """The versions of a model that were current, the oldest first."""

    model: str
    current: str | Absent = Field(None, description="the version that was promoted, if any was")
    canary: CanaryFigures | Absent = None
    events: list[HistoryEvent]


_EVENT = {
    "at": "2026-11-27T12:00:00.000Z",
    "who": "anna",
    "action": "promote",
    "version": "7",
    "previous": "6",
    "why": "new cameras",
}
_EXAMPLES: dict[type[BaseModel], Any] = {
    ModelHistory: {"model": "yolov8n", "current": "7", "events": [_EVENT]},
    Promotion: {"version": 7, "canary": 0.05, "seconds": 600, "max_p99": 0.1, "why": "new cameras"},
    Rollback: {"why": "it misses bicycles"},
}


def described_history(name: str, body: type[BaseModel] | None = None) -> dict[str, Any]:
    """Describe a route that answers the history of a model."""
    errors = () if body is None else (400, 413, 422)
    made = described(name, ModelHistory, 403, 404, 503, *errors)
    made["responses"][200] = {"content": _json(ModelHistory)}
    if body is not None:
        schema = {"schema": body.model_json_schema(), **_json(body)["application/json"]}
        content = {"application/json": schema}
        made["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return made


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"examples": {"one": {"value": _EXAMPLES[model]}}}}
