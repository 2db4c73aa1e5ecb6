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


class CanarySettings(BaseModel):
    """Of a canary: its share, its time, its limits."""

    model_config = ConfigDict(extra="forbid")

    share: float = Field(description="of the requests that name no version: 0.001 to 0.5")
    seconds: float = Field(600, description="after which it becomes current")
    max_p99: float | Absent = Field(
        None, description="its p99 may be longer by this part of that of the current version"
    )
    max_disagreement: float | Absent = Field(
        None, description="part of the images that may have other results"
    )


class Rollback(BaseModel):
    """Back to the version before."""

    model_config = ConfigDict(extra="forbid")

    who: str | Absent = Field(None, description=_WHO)
    why: str | Absent = Field(None, description=_WHY)


class Promotion(Rollback):
    """The version that is to be current."""

    version: int = Field(ge=1)
    canary: CanarySettings | Absent = None


class HistoryEvent(BaseModel):
    """A change of the current version, or of a canary."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    at: datetime
    who: str = Field(description="name of the key, or of the user")
    action: Literal["promote", "rollback", "canary", "canary_passed", "canary_failed"]
    version: str = Field(description="that is current from then on, or the canary")
    previous: str = Field(description="that was current, or the canary that was ended")
    why: str
    share: float | None = None
    seconds: float | None = None
    max_p99: float | None = None
    max_disagreement: float | None = None


class CanaryFigures(BaseModel):
    """A canary that runs, and the current version beside it, as this server has seen them."""

    version: str
    until: datetime = Field(description="when it becomes current, unless it fails")
    answered: int
    failed: int
    p99_ms: float | None
    current_answered: int
    current_failed: int
    current_p99_ms: float | None


class ModelHistory(BaseModel):
    """The versions of a model that were current, the oldest first."""

    model: str
    current: str | None = Field(description="the version that was promoted; null: the newest")
    canary: CanaryFigures | None
    events: list[HistoryEvent]


def described_change(name: str, body: type[BaseModel]) -> dict[str, Any]:
    """Describe a route that changes the current version."""
    made = described(name, ModelHistory, 400, 403, 404, 413, 422, 503)
    content = {"application/json": {"schema": body.model_json_schema()}}
    return made | {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
