"""The JSON documents of promotions and rollbacks, and of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema

from fovea_engines.repository.history import HISTORY_FILE
from fovea_preprocess.errors import InvalidModel, InvalidOption
from fovea_server.models.config.config_check import validate

Event = Mapping[str, Any]

DEFAULT_EVENTS, MAX_EVENTS = 100, 1000
"""Default and largest number of history events in a response."""

Absent = SkipJsonSchema[None]

_EVENT: JsonDict = {
    **{"number": 3, "at": "2026-11-27T12:00:00.000Z", "who": "anna", "action": "promote"},
    **{"version": "7", "previous": "6", "why": "new cameras"},
}
_HISTORY: JsonDict = {"model": "yolov8n", "current": "7", "events": [_EVENT]}
_PROMOTION: JsonDict = {
    "version": 7,
    "canary": 0.05,
    "seconds": 600,
    "max_p99": 0.1,
    "why": "new cameras",
}


MIN_CANARY, MAX_CANARY = 0.001, 0.5
CanaryShare = Annotated[float, Field(ge=MIN_CANARY, le=MAX_CANARY)]


class CanaryPlan(BaseModel):
    """The plan of a canary: its share of the requests, its duration in seconds, and its limits."""

    model_config = ConfigDict(strict=True)

    share: CanaryShare
    seconds: float = Field(600.0, ge=1, le=365 * 86_400)
    max_p99: float | None = Field(None, ge=0, le=100)
    max_disagreement: float | None = Field(None, ge=0.0001, le=0.99)


class Rollback(BaseModel):
    """A request to return to the previous version."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"why": "it misses bicycles"}]}
    )

    who: str | Absent = Field(
        None,
        description=(
            "person or program that makes the change, for the history of versions; a request with "
            "an API key gets the name of the key"
        ),
    )
    why: str | Absent = Field(
        None, description="reason for the change, for the history of versions"
    )


class Promotion(Rollback):
    """A request to make a version current, or to begin a canary."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PROMOTION]})

    version: int = Field(ge=1)
    canary: CanaryShare | Absent = Field(
        None, description="fraction of the requests that the version answers first: 0.001 to 0.5"
    )
    seconds: float | Absent = Field(
        None, description="duration of the canary in seconds; default 600"
    )
    max_p99: float | Absent = Field(
        None,
        description=(
            "largest increase of the canary's p99 latency, as a fraction of the p99 latency of the "
            "current version"
        ),
    )
    max_disagreement: float | Absent = Field(
        None,
        description=(
            "largest fraction of objects (for a classifier: images) on which the canary and the "
            "current version differ"
        ),
    )

    def plan(self) -> CanaryPlan | None:
        """Return the plan of a canary; None if the version is to become current at once.

        Raises:
            InvalidOption: the request has limits for a canary, but no fraction of requests
                (`share`).
        """
        limits = self.model_dump(include={*CanaryPlan.model_fields}, exclude_none=True)
        if self.canary is not None:
            return validate(CanaryPlan, {"share": self.canary, **limits})
        if limits:
            raise InvalidOption(f"{min(limits)} has no effect without canary")
        return None


class HistoryEvent(BaseModel):
    """A change of the current version, or of a canary."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    number: int = Field(description="number of the event, from 1 upwards")
    at: datetime
    who: str = Field(description="name of the API key or of the user who made the change")
    action: Literal["promote", "rollback", "canary", "canary_passed", "canary_failed"]
    version: str = Field(description="version that becomes current, or the canary")
    previous: str = Field(description="version that was current before, or the canary that ended")
    why: str
    built: bool | Absent = Field(
        None, description="true if a build, and not a user, made the version current"
    )
    share: float | Absent = Field(
        None, description="fraction of the requests and further figures of a canary"
    )
    seconds: float | Absent = None
    max_p99: float | Absent = None
    max_disagreement: float | Absent = None


class CanaryFigures(BaseModel):
    """Figures of a running canary and of the current version, as counted by this server."""

    version: str
    until: datetime = Field(
        description=(
            "time when the canary becomes current, or is withdrawn if it fails or still "
            "lacks responses"
        )
    )
    waits_for: str | Absent = Field(
        None,
        description=(
            "number of responses that the canary still needs to pass; absent if it has enough"
        ),
    )
    answered: int
    failed: int
    p99_ms: float | Absent = None
    current_answered: int
    current_failed: int
    current_p99_ms: float | Absent = None


class ModelHistory(BaseModel):
    """The promotion history of a model, oldest event first."""

    model_config = ConfigDict(json_schema_extra={"examples": [_HISTORY]})

    model: str
    current: str | Absent = Field(
        None, description="promoted version; null if no version was promoted"
    )
    canary: CanaryFigures | Absent = None
    events: list[HistoryEvent] = Field(
        description="newest events, or the events before a given number"
    )

    @classmethod
    def of(
        cls,
        name: str,
        events: Sequence[Event],
        current: int | None,
        canary: CanaryFigures | None = None,
        *,
        limit: int = DEFAULT_EVENTS,
        before: int | None = None,
    ) -> Self:
        """Make the document with the last events of a history.

        Args:
            name: name of the model.
            events: all events of the history file.
            current: the promoted version; None if none was promoted.
            canary: figures of the running canary, if any.
            limit: largest number of events in the document.
            before: number of an event; this event and later events are left out.

        Raises:
            InvalidModel: the file contains an invalid event.
        """
        end = len(events) if before is None else before - 1
        documents = []
        for number, event in [*enumerate(events[:end], 1)][-limit:]:
            try:
                documents.append(HistoryEvent.model_validate({**event, "number": number}))
            except ValidationError:
                raise InvalidModel(
                    f"line {number} of {name}/{HISTORY_FILE} is not a valid event: delete the line"
                ) from None
        version = None if current is None else str(current)
        return cls(model=name, current=version, canary=canary, events=documents)
