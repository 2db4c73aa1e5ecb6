"""The routes of Roboflow's inference server that inference_sdk calls for image models.

Source: inference_sdk 1.8.3, and the request and response models of roboflow/inference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version as installed_version
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor

from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.http.v1.answers import draw_image
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.dependencies import (
    answer_body,
    call_of,
    check_control,
    inferring,
    require_access,
    service_of,
)
from fovea_server.http.v1.request_head import query_values
from fovea_server.integrations.request_handling import (
    admit_by_body,
    admit_late,
    check_task,
    deadline,
    models_of,
    parse_late,
    predict_images,
    query_key,
    result_of,
    write_errors_with,
)
from fovea_server.integrations.roboflow.request import (
    PredictCall,
    model_of,
    parse_legacy,
    parse_request,
)
from fovea_server.integrations.roboflow.result_json import TASKS, predictions_json, response
from fovea_server.models.model import ServedModel, State
from fovea_server.settings import ModelControlMode

_METADATA = [require_access("metadata"), require_access("model-repository")]
_CONTROL = [admit_by_body(require_access("model-repository"))]
_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
_SERVER = str(uuid4())

_models = APIRouter(prefix="/model")
_about = APIRouter()

_JSON = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
_BASE64 = {"content": {"application/json": {"schema": {"type": "string"}}}}


@_about.get("/info", operation_id="roboflow_info", dependencies=[require_access("metadata")])
async def info() -> Response:
    """Return the name and the version of the server."""
    return _json({"name": "Fovea", "version": installed_version("fovea-serve"), "uuid": _SERVER})


@_models.get("/registry", operation_id="roboflow_models", dependencies=_METADATA)
async def registry(request: Request) -> Response:
    """List the ready versions of models as NAME/VERSION."""
    return _list_registered(request)


@_models.post(
    "/add", operation_id="roboflow_load_model", dependencies=_CONTROL, openapi_extra=_BODY
)
async def add(request: Request) -> Response:
    """Load a model in explicit mode; in other modes, check that it is loaded."""

    async def answer(body: bytes) -> Response:
        given = await parse_late(request, body, json_object)
        await admit_late(request, given.get("api_key"))
        model_id = given.get("model_id")
        name, version = model_of(model_id)
        models = models_of(request)
        call_of(request).model = name
        if _is_explicit(request):
            check_control(request, "model-repository")
            await models.load(name)
        models.check_ready(name)
        return _list_registered(
            request, [_describe_model(models.get(name, version), str(model_id))]
        )

    return await answer_body(request, answer, deadline(request))


@_models.post(
    "/remove", operation_id="roboflow_unload_model", dependencies=_CONTROL, openapi_extra=_BODY
)
async def remove(request: Request) -> Response:
    """Unload all versions of a model in explicit mode."""

    async def answer(body: bytes) -> Response:
        given = await parse_late(request, body, json_object)
        await admit_late(request, given.get("api_key"))
        name, _ = model_of(given.get("model_id"))
        call_of(request).model = name
        _check_unload(request)
        await models_of(request).unload(name)
        return _list_registered(request)

    return await answer_body(request, answer, deadline(request))


@_models.post(
    "/clear",
    operation_id="roboflow_unload_all_models",
    dependencies=[require_access("model-repository")],
)
async def clear(request: Request) -> Response:
    """Unload all models in explicit mode."""
    _check_unload(request)
    models = models_of(request)
    for name in {model.name for model in models}:
        await models.unload(name)
    return _list_registered(request)


def _is_explicit(request: Request) -> bool:
    mode = service_of(request).settings.model_control_mode
    return mode is ModelControlMode.EXPLICIT


def _check_unload(request: Request) -> None:
    if not _is_explicit(request):
        raise InvalidRequest(
            "this server does not unload models on request: start it with "
            "--model-control-mode=explicit"
        )
    check_control(request, "model-repository")


def _list_registered(
    request: Request, requested: list[dict[str, object]] | None = None
) -> Response:
    ready = [model for model in models_of(request).visible() if model.state is State.READY]
    models = [_describe_model(m, f"{m.name}/{m.version}") for m in ready if m.task in TASKS]
    # Clients expect the ID exactly as they requested it, possibly without a version.
    return _json({"models": [*(requested or ()), *models]})


def _describe_model(model: ServedModel, model_id: str) -> dict[str, object]:
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


class Dataset(StringConvertor):
    """Matches the NAME in the path `/NAME/VERSION`, but not the path prefixes of this server."""

    regex = "(?!(?:v1|v2|page|docs|label-studio|static-offline-docs)/)[^/]+"


register_url_convertor("dataset", Dataset())


def _error(error: FoveaError) -> bytes:
    return orjson.dumps({"message": str(error)})


router = APIRouter(tags=["roboflow"], dependencies=[write_errors_with(_error), query_key])
# Add these routes before `/NAME/VERSION`, because their paths have the same form.
router.include_router(_models)
router.include_router(_about)
_INFERENCE = [admit_by_body(inferring)]


async def infer(request: Request) -> Response:
    """Run the model in `model_id` on one image or a list of images."""
    work = partial(parse_request, max_images=service_of(request).settings.max_images)
    return await _answer(request, partial(parse_late, request, work=work))


for _task in ("object_detection", "instance_segmentation", "keypoints_detection", "classification"):
    router.post(
        f"/infer/{_task}",
        operation_id=f"roboflow_{_task}",
        dependencies=_INFERENCE,
        openapi_extra={"requestBody": _JSON},
    )(infer)


@router.post(
    "/{dataset:dataset}/{version}",
    operation_id="roboflow_legacy",
    dependencies=_INFERENCE,
    openapi_extra={"requestBody": _BASE64},
)
async def legacy(request: Request, dataset: str, version: str) -> Response:
    """Run one version of a model on the image in the body, which is base64 text."""
    model_id = f"{dataset}/{version}"
    query = query_values(request.scope["query_string"].decode("latin-1"))
    kind = request.headers.get("content-type", "")
    if request.state.admit is None:
        # Look up the model first, so that a request for an unknown model is rejected before its
        # body arrives.
        models_of(request).get(*model_of(model_id))
    work = partial(parse_legacy, model_id, query, kind)
    parse = partial(run_in_threadpool, work)
    return await _answer(request, parse, drawn_alone=query.get("format") == "image")


async def _answer(
    request: Request, parse: Callable[[bytes], Awaitable[PredictCall]], *, drawn_alone: bool = False
) -> Response:
    async def answer(body: bytes) -> Response:
        call = await parse(body)
        await admit_late(request, call.key)
        if not call.draw:
            prediction, image = await _predict(request, call), None
        elif len(call.sources) > 1:
            raise InvalidRequest(
                f"the request has {len(call.sources)} images, but only one can be annotated: send "
                "one image, or set visualize_predictions to false"
            )
        else:
            # Limit the number of images that wait to be drawn, because each holds its decoded
            # pixels in memory.
            async with service_of(request).drawing:
                prediction = await _predict(request, call)
                result_of(prediction.images[0])
                image = await draw_image(service_of(request), prediction, "image/jpeg")
        if drawn_alone:
            return Response(image, media_type="image/jpeg")
        seconds = prediction.total_ns / 1e9
        responses = [
            response(result_of(each), prediction.vocabulary, seconds, image)
            for each in prediction.images
        ]
        content = orjson.dumps(responses if call.several else responses[0])
        return Response(content, media_type="application/json")

    return await answer_body(request, answer, deadline(request))


async def _predict(request: Request, call: PredictCall) -> Prediction:
    model = models_of(request).get(call.name, call.version)
    check_task(model, tuple(TASKS))
    encode = partial(predictions_json, least=call.options.conf, least_keypoint=call.least_keypoint)
    options = call.options_for(model.task)
    sources = call.sources
    return await predict_images(
        request, model, call.version, sources, options, encode, keep_pixels=call.draw
    )


class Roboflow(Feature):
    """Server feature: the API of Roboflow's inference server."""

    def router(self) -> APIRouter:
        """Return the routes of the API."""
        return router
