"""The routes of predict requests as the OpenAPI document has them; `PredictFront` answers them."""

from __future__ import annotations

from fastapi import APIRouter

from fovea_preprocess.errors import NotFound
from fovea_server.http.v1.models import ModelName, Version, inferring
from fovea_server.http.v1.openapi import described_prediction

router = APIRouter(tags=["predict"], dependencies=[inferring])
"""Describes the requests in the OpenAPI document, and refuses those with a wrong version."""


@router.post("/v1/models/{name}/predict", **described_prediction("predict"))
async def predict(name: ModelName) -> None:
    """Find what is on one or more images, with the newest version of a model."""
    raise NotFound(f"there is no model '{name[:60]}'")


@router.post(
    "/v1/models/{name}/versions/{version}/predict", **described_prediction("predict_version")
)
async def predict_version(name: ModelName, version: Version) -> None:
    """Find what is on one or more images, with one version of a model."""
    raise NotFound(f"model '{name[:60]}' has no such version")
