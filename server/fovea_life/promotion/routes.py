"""Routes that change which version of a model is current, and that tell what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from fovea_engines.repository.repository import ModelRepository
from fovea_life.promotion.canary import RunningCanary
from fovea_life.promotion.documents import (
    CanaryFigures,
    HistoryEvent,
    ModelHistory,
    Promotion,
    Rollback,
    described_history,
)
from fovea_life.promotion.plan import CanaryPlan
from fovea_life.promotion.promoter import Promoter
from fovea_life.promotion.record import FILE, Event
from fovea_preprocess.errors import InvalidModel, InvalidOption
from fovea_server.http.v1.answered import answered
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.models import ModelName, call_of, check_control, restricted

_INDEX = [restricted("metadata"), restricted("model-repository")]

Body = TypeVar("Body", bound=Rollback)


def promotion_routes(promoter: Promoter) -> APIRouter:
    """Make the routes; those that change something are for who may load models."""
    router = APIRouter(tags=["models"], prefix="/v1/models", dependencies=_INDEX)

    async def history(name: str) -> Response:
        models, folder = promoter.place(name)
        canary = _figures(promoter.canaries.get(name))
        # In a thread: a history may be long.
        text = await asyncio.to_thread(_document, name, models, folder, canary)
        return Response(text, media_type="application/json")

    async def changed(
        request: Request,
        name: str,
        kind: type[Body],
        change: Callable[[Body, str], Coroutine[Any, Any, None]],
    ) -> Response:
        check_control(request, "model-repository")

        async def work(body: bytes) -> Response:
            given = _read(kind, body)
            holder = call_of(request).holder
            who = holder.name if holder is not None else (given.who or "")[:100]
            # A client that leaves does not stop it half-way, with a version loaded for nobody.
            await asyncio.shield(change(given, who or call_of(request).client or ""))
            return await history(name)

        return await answered(request, work, None)

    @router.get("/{name}/history", **described_history("model_history"))
    async def model_history(name: ModelName) -> Response:
        """List who made which version current, when and why; and how a canary does."""
        return await history(name)

    @router.post("/{name}/promote", **described_history("promote_model", body=Promotion))
    async def promote_model(request: Request, name: ModelName) -> Response:
        """Make a version current: it answers all requests that name none, or a share of them."""

        async def change(given: Promotion, who: str) -> None:
            await promoter.promote(name, given.version, _plan(given), who, given.why or "")

        return await changed(request, name, Promotion, change)

    @router.post("/{name}/rollback", **described_history("roll_model_back", body=Rollback))
    async def roll_model_back(request: Request, name: ModelName) -> Response:
        """End the canary, or make the version before current again."""

        async def change(given: Rollback, who: str) -> None:
            await promoter.rollback(name, who, given.why or "")

        return await changed(request, name, Rollback, change)

    return router


def _plan(given: Promotion) -> CanaryPlan | None:
    limits = {
        key: value
        for key in ("seconds", "max_p99", "max_disagreement")
        if (value := getattr(given, key)) is not None
    }
    if given.canary is not None:
        return CanaryPlan(given.canary, **limits)
    if limits:
        raise InvalidOption(f"{min(limits)} has no effect without canary, its share of requests")
    return None


def _read(kind: type[Body], body: bytes) -> Body:
    try:
        return kind.model_validate(json_object(body))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidOption(f"{place}: {first['msg']}; see /docs for the fields") from None


def _document(name: str, models: ModelRepository, folder: str, canary: CanaryFigures | None) -> str:
    history = models.history(folder)
    current = history.current
    return ModelHistory(
        model=name,
        current=None if current is None else str(current),
        canary=canary,
        events=_events(name, history.events),
    ).model_dump_json(exclude_none=True)


def _figures(canary: RunningCanary | None) -> CanaryFigures | None:
    if canary is None:
        return None
    return CanaryFigures(
        version=str(canary.version),
        until=canary.until,
        answered=canary.own.answered,
        failed=canary.own.failed,
        p99_ms=canary.own.p99_ms,
        current_answered=canary.others.answered,
        current_failed=canary.others.failed,
        current_p99_ms=canary.others.p99_ms,
    )


def _events(name: str, events: Iterable[Event]) -> list[HistoryEvent]:
    found = []
    for number, event in enumerate(events, 1):
        try:
            found.append(HistoryEvent.model_validate(event))
        except ValidationError:
            raise InvalidModel(f"line {number} of {name}/{FILE} is no event: take it out") from None
    return found
