"""The routes about models and the server that inference_sdk calls."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response

from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.route import answered, call_of, check_control, restricted, service_of
from fovea_server.integrations.asking import admit_late, by_body, deadline, models_of, parsed_late
from fovea_server.integrations.roboflow.request import model_of
from fovea_server.integrations.roboflow.result_json import TASKS
from fovea_server.models.model import ServedModel, State
from fovea_server.settings import ModelControlMode

_METADATA = [restricted("metadata"), restricted("model-repository")]
_CONTROL = [by_body(restricted("model-repository"))]
_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
_SERVER = str(uuid4())

router = APIRouter(prefix="/model")
about = APIRouter()


@about.get("/info", operation_id="roboflow_info", dependencies=[restricted("metadata")])
async def info() -> Response:
    """Describe the server."""
    return _json({"name": "Fovea", "version": installed_version("fovea-serve"), "uuid": _SERVER})


@router.get("/registry", operation_id="roboflow_models", dependencies=_METADATA)
async def registry(request: Request) -> Response:
    """List the versions of models that are ready, as NAME/VERSION."""
    return _registered(request)


@router.post("/add", operation_id="roboflow_load_model", dependencies=_CONTROL, openapi_extra=_BODY)
async def add(request: Request) -> Response:
    """Load a model in explicit mode; in others it must be there already."""

    async def answer(body: bytes) -> Response:
        given = await parsed_late(request, body, json_object)
        await admit_late(request, given.get("api_key"))
        model_id = given.get("model_id")
        name, version = model_of(model_id)
        models = models_of(request)
        call_of(request).model = name
        if _explicit(request):
            check_control(request, "model-repository")
            await models.load(name)
        models.check_ready(name)
        return _registered(request, [_described(models.get(name, version), str(model_id))])

    return await answered(request, answer, deadline(request))


@router.post(
    "/remove", operation_id="roboflow_unload_model", dependencies=_CONTROL, openapi_extra=_BODY
)
async def remove(request: Request) -> Response:
    """Unload all versions of a model, in explicit mode."""

    async def answer(body: bytes) -> Response:
        given = await parsed_late(request, body, json_object)
        await admit_late(request, given.get("api_key"))
        name, _ = model_of(given.get("model_id"))
        call_of(request).model = name
        _check_unload(request)
        await models_of(request).unload(name)
        return _registered(request)

    return await answered(request, answer, deadline(request))


@router.post(
    "/clear",
    operation_id="roboflow_unload_all_models",
    dependencies=[restricted("model-repository")],
)
async def clear(request: Request) -> Response:
    """Unload all models, in explicit mode."""
    _check_unload(request)
    models = models_of(request)
    for name in {model.name for model in models}:
        await models.unload(name)
    return _registered(request)


def _explicit(request: Request) -> bool:
    mode = service_of(request).settings.model_control_mode
    return mode is ModelControlMode.EXPLICIT


def _check_unload(request: Request) -> None:
    if not _explicit(request):
        raise InvalidRequest(
            "requests unload models only from a server with --model-control-mode=explicit"
        )
    check_control(request, "model-repository")


def _registered(request: Request, asked: list[dict[str, object]] | None = None) -> Response:
    ready = [model for model in models_of(request).visible() if model.state is State.READY]
    models = [_described(m, f"{m.name}/{m.version}") for m in ready if m.task in TASKS]
    # A client looks for the very id that it asked for, which may have no version.
    return _json({"models": [*(asked or ()), *models]})


def _described(model: ServedModel, model_id: str) -> dict[str, object]:
    engine = model.engine
    spec = None if engine is None else engine.card.preprocess
    return {
        "model_id": model_id,
        "task_type": TASKS.get(model.task, model.task),
        "batch_size": max(1, model.signature.max_batch_size),
        "input_height": None if spec is None else spec.height,
        "input_width": None if spec is None else spec.width,
    }


def _json(document: dict[str, object]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
