"""Routes for the health, metadata and statistics of the server and its models."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from fovea_server.dataplane.model_documents import Live, Model, ModelList, ModelStatistics, Ready
from fovea_server.http.v1.dependencies import (
    INDEX,
    ModelName,
    Version,
    check_control,
    require_access,
    service_of,
)
from fovea_server.http.v1.openapi import describe_route

health = APIRouter(tags=["health"], prefix="/v1/health", dependencies=[require_access("health")])
router = APIRouter(tags=["models"], prefix="/v1/models")
_METADATA = [require_access("metadata")]


async def identity(_: Request) -> Response:
    """Return the server's name and version. Load balancers expect status 200 from this path."""
    content = {"name": "fovea", "version": version("fovea-serve"), "docs": "/docs"}
    return JSONResponse(content, headers={"Cache-Control": "no-cache", "Vary": "Accept"})


@health.get("/live", **describe_route("server_live", Live, 403))
async def live() -> Live:
    """Report that the process is alive."""
    return Live(live=True)


@health.get("/ready", **describe_route("server_ready", Ready, 403, 503))
async def ready(request: Request) -> Ready:
    """Report whether all models of the start are ready.

    If not, the status is 503 and the body has the reason.
    """
    service_of(request).models.check_ready()
    return Ready(ready=True)


@router.get("", dependencies=INDEX, **describe_route("list_models", ModelList, 403))
async def list_models(request: Request) -> ModelList:
    """List the models that are served and the models that failed to load, with the reason."""
    return service_of(request).models.documents()


@router.get("/{name}", dependencies=_METADATA, **describe_route("get_model", Model, 403, 404, 503))
async def get_model(request: Request, name: ModelName) -> Model:
    """Describe the current version of a model: inputs, outputs, labels and engine card."""
    return service_of(request).models.document(name)


@router.get(
    "/{name}/versions/{version}",
    dependencies=_METADATA,
    **describe_route("get_model_version", Model, 403, 404, 503),
)
async def get_model_version(request: Request, name: ModelName, version: Version) -> Model:
    """Describe one version of a model."""
    return service_of(request).models.document(name, version)


@router.post(
    "/{name}/versions/{version}/load",
    dependencies=INDEX,
    **describe_route("load_model_version", Model, 400, 403, 404, 503),
)
async def load_model_version(request: Request, name: ModelName, version: Version) -> Model:
    """Load a version in addition to the loaded versions. The current version stays the same."""
    check_control(request, "model-repository")
    models = service_of(request).models
    # The load continues even if the client disconnects.
    await asyncio.shield(models.load_version(name, version))
    return models.document(name, version)


@router.post(
    "/{name}/versions/{version}/unload",
    dependencies=INDEX,
    **describe_route("unload_model_version", Model, 400, 403, 404, 503),
)
async def unload_model_version(request: Request, name: ModelName, version: Version) -> Model:
    """Unload a version that was loaded by its number.

    The response describes the current version.
    """
    check_control(request, "model-repository")
    models = service_of(request).models
    await asyncio.shield(models.unload_version(name, version))
    return models.document(name)


@router.get(
    "/{name}/ready",
    dependencies=[require_access("health")],
    **describe_route("model_ready", Ready, 403, 404, 503),
)
async def model_ready(request: Request, name: ModelName) -> Ready:
    """Report whether a model accepts requests.

    If not, the status is 503 and the body has the reason.
    """
    service_of(request).models.check_ready(name)
    return Ready(ready=True)


@router.get(
    "/{name}/statistics",
    dependencies=[require_access("statistics")],
    **describe_route("model_statistics", ModelStatistics, 403, 404, 503),
)
async def model_statistics(request: Request, name: ModelName) -> ModelStatistics:
    """Return the request counts and durations of each ready version of a model."""
    service = service_of(request)
    return service.models.statistics(name, service.traffic.durations.of(name))
