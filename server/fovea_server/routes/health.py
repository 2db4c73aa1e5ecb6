"""Live and ready, as Triton's clients and Kubernetes' probes ask for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from fovea_preprocess.errors import NotFound
from fovea_server.model import State

router = APIRouter(tags=["health"])


class Live(BaseModel):
    """The process answers."""

    live: bool


class Ready(BaseModel):
    """Models answer; `reason` says why not."""

    ready: bool
    reason: str = ""


_NOT_READY: dict[int | str, dict[str, Any]] = {400: {"model": Ready, "description": "not ready"}}


@router.get("/v2/health/live")
async def live() -> Live:
    """Whether the process answers."""
    return Live(live=True)


@router.get("/v2/health/ready", response_model=Ready, responses=_NOT_READY)
async def ready(request: Request) -> JSONResponse:
    """Whether every model is ready."""
    reason = request.app.state.plane.registry.reason
    return _answer(not reason, reason)


@router.get("/v2/models/{name}/ready", response_model=Ready, responses=_NOT_READY)
async def model_ready(request: Request, name: str) -> JSONResponse:
    """Whether the newest version of a model is ready."""
    return _model_answer(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/ready", response_model=Ready, responses=_NOT_READY
)
async def version_ready(
    request: Request, name: str, version: Annotated[int, Path(ge=1)]
) -> JSONResponse:
    """Whether one version of a model is ready."""
    return _model_answer(request, name, version)


def _model_answer(request: Request, name: str, version: int | None) -> JSONResponse:
    try:
        model = request.app.state.plane.registry.get(name, version)
    except NotFound as error:
        return _answer(False, str(error))
    return _answer(model.state is State.READY, model.reason)


def _answer(ready: bool, reason: str) -> JSONResponse:
    # Triton answers 400, not 503, and its clients and probes expect that.
    body = {"ready": ready} if ready else {"ready": ready, "reason": reason}
    return JSONResponse(body, status_code=200 if ready else 400)
