"""Routes that change which version of a model is current, and that tell what happened."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from fovea_server.http.v1.openapi import described
from fovea_server.http.v1.route import ModelName, call_of, restricted
from fovea_server.rollout.changing import changing
from fovea_server.rollout.promotion.documents import LATEST, MOST, ModelHistory, Promotion, Rollback
from fovea_server.rollout.promotion.promoter import Promoter

_INDEX = [restricted("metadata"), restricted("model-repository")]
_CHANGES = 400, 403, 404, 413, 422, 503

Limit = Annotated[int, Query(ge=1, le=MOST, description="most events")]
Before = Annotated[int | None, Query(ge=1, description="only events before this number")]


def promotion_routes(promoter: Promoter) -> APIRouter:
    """Make the routes; those that change something are for who may load models."""
    router = APIRouter(tags=["models"], prefix="/v1/models/{name}", dependencies=_INDEX)

    async def changed(request: Request, name: str, kind: type[Rollback]) -> Response:
        async def work(given: Rollback) -> str:
            call = call_of(request)
            who = call.principal.name if call.principal is not None else (given.who or "")[:100]
            # A client that leaves does not stop it half-way, with a version loaded for nobody.
            await asyncio.shield(promoter.change(name, given, who or call.client or ""))
            return (await promoter.history(name)).model_dump_json(exclude_none=True)

        return await changing(request, kind, work)

    @router.get(
        "/history",
        response_model_exclude_none=True,
        **described("model_history", ModelHistory, 403, 404, 422, 503),
    )
    async def model_history(
        name: ModelName, limit: Limit = LATEST, before: Before = None
    ) -> ModelHistory:
        """List who made which version current, when and why; and how a canary does."""
        return await promoter.history(name, limit, before)

    @router.post("/promote", **described("promote_model", ModelHistory, *_CHANGES, body=Promotion))
    async def promote_model(request: Request, name: ModelName) -> Response:
        """Make a version current: it answers all requests that name none, or a share of them."""
        return await changed(request, name, Promotion)

    @router.post(
        "/rollback", **described("roll_model_back", ModelHistory, *_CHANGES, body=Rollback)
    )
    async def roll_model_back(request: Request, name: ModelName) -> Response:
        """End the canary, or make the version before current again."""
        return await changed(request, name, Rollback)

    return router
