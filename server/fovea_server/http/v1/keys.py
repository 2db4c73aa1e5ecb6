"""The route that returns the rights and limits of the request's API key."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from fovea_preprocess.errors import NotFound
from fovea_server.auth.bucket import LimitedPrincipal
from fovea_server.feature import Feature
from fovea_server.http.v1.dependencies import call_of, require_access
from fovea_server.http.v1.openapi import describe_route


class OwnKey(BaseModel):
    """The API key that the request was sent with."""

    name: str
    scopes: list[str]
    models: list[str] = Field(
        description="name patterns of the allowed models; empty if all models are allowed"
    )
    expires: datetime | None = Field(
        description="time when the key expires; null if it never expires"
    )
    images_per_s: float | None = Field(description="rate limit of the key; null if there is none")
    images_left: float | None = Field(
        description=(
            "number of images that the rate limit allows at this moment; null if there is no limit"
        )
    )
    quota: int | None = Field(
        description="number of images per hour, day or month; null if there is no quota"
    )
    quota_left: int | None = Field(
        description="number of images of the quota that are left; null if there is no quota"
    )
    quota_ends: datetime | None = Field(
        description="time when the next quota period begins; null if there is no quota"
    )


router = APIRouter(tags=["keys"], prefix="/v1/keys", dependencies=[require_access("metadata")])


@router.get("/self", **describe_route("own_key", OwnKey, 403, 404))
async def own_key(request: Request) -> OwnKey:
    """Return the rights and the remaining limits of this request's API key."""
    principal = call_of(request).principal
    if principal is None:
        raise NotFound("this server requires no keys: it was started without --keys")
    bucket = meter = None
    if isinstance(principal, LimitedPrincipal):
        bucket, meter = principal.bucket, principal.meter
    return OwnKey(
        name=principal.name,
        scopes=sorted(principal.scopes),
        models=list(principal.models),
        expires=principal.expires,
        images_per_s=None if bucket is None else bucket.rate.per_s,
        images_left=None if bucket is None else round(max(bucket.left, 0.0), 3),
        quota=None if meter is None else meter.quota.images,
        quota_left=None if meter is None else meter.left,
        quota_ends=None if meter is None else meter.ends,
    )


class KeyRoute(Feature):
    """Server feature that adds the route for the request's API key."""

    def router(self) -> APIRouter:
        """Return the router with the route."""
        return router
