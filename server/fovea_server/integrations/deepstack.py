"""The object detection API of DeepStack and CodeProject.AI.

Frigate, Blue Iris and Home Assistant can use this API.

Source: the API reference of CodeProject.AI Server, which adopted DeepStack's API.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from urllib.parse import parse_qs

import orjson
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import FoveaError, InvalidRequest, NotFound
from fovea_preprocess.text import counted
from fovea_server.dataplane.prediction import Prediction
from fovea_server.error_status import http_status
from fovea_server.feature import Feature
from fovea_server.http.v1.body import read_form, read_parts
from fovea_server.http.v1.dependencies import (
    INDEX,
    answer_body,
    call_of,
    inferring,
    require_access,
    service_of,
)
from fovea_server.integrations.request_handling import (
    BOXES,
    admit_by_body,
    admit_late,
    check_task,
    deadline,
    default_model,
    models_of,
    predict_images,
    result_of,
    share,
    write_errors_with,
)
from fovea_server.models.model import ServedModel, State
from fovea_server.tensors.messages import ImageResult

_DEFAULT_CONFIDENCE = 0.4
_MODULE = {"moduleId": "Fovea", "moduleName": "Fovea"}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "string", "format": "binary"},
                        "min_confidence": {"type": "number", "default": _DEFAULT_CONFIDENCE},
                    },
                }
            }
        },
    }
}


def _error(error: FoveaError) -> bytes:
    return _answer(success=False, error=str(error), code=http_status(error))


router = APIRouter(tags=["deepstack"], prefix="/v1", dependencies=[write_errors_with(_error)])
_INFERENCE = [admit_by_body(inferring)]
_KEYED_INDEX = [admit_by_body(*INDEX)]


@router.post(
    "/vision/detection",
    operation_id="deepstack_detection",
    dependencies=_INFERENCE,
    openapi_extra=_FORM,
)
async def detection(request: Request) -> Response:
    """Detect objects with the model of `--api deepstack=MODEL`, or with the only suitable model."""
    instead = "send the request to POST /v1/vision/custom/MODEL"
    caller = service_of(request), call_of(request)
    find = partial(default_model, *caller, "deepstack", BOXES, instead)
    return await _detect(request, find, "detect")


@router.get("/vision/custom/list", operation_id="deepstack_models", dependencies=INDEX)
async def custom_list(request: Request) -> Response:
    """List the models that can be used with `/v1/vision/custom/{name}`."""
    ready = [model for model in models_of(request).visible() if model.state is State.READY]
    names = sorted({model.name for model in ready if model.task in BOXES})
    body = _answer(success=True, models=names, code=200, command="list-custom")
    return Response(body, media_type="application/json")


@router.post("/vision/custom/list", operation_id="deepstack_list", dependencies=_KEYED_INDEX)
async def posted_list(request: Request) -> Response:
    """List the models that can be used with `/v1/vision/custom/{name}`."""
    if request.state.admit is None:
        return await custom_list(request)

    async def answer(body: bytes) -> Response:
        kind = request.headers.get("content-type", "")
        await admit_late(request, await run_in_threadpool(_key_in, body, kind))
        return await custom_list(request)

    return await answer_body(request, answer, deadline(request))


@router.post(
    "/vision/custom/{name}",
    operation_id="deepstack_custom",
    dependencies=_INFERENCE,
    openapi_extra=_FORM,
)
async def custom(request: Request, name: str) -> Response:
    """Detect objects with the current version of a model."""
    return await _detect(request, partial(models_of(request).get, name), "custom")


@router.post("/vision/{rest:path}", include_in_schema=False)
async def others(rest: str) -> Response:
    """Reject other functions of DeepStack, such as face recognition, with an error in its form."""
    raise NotFound(
        f"unknown DeepStack route /v1/vision/{rest[:60]}: use /v1/vision/detection or "
        "/v1/vision/custom/MODEL"
    )


@router.get("/status/ping", operation_id="deepstack_ping", dependencies=[require_access("health")])
async def ping() -> Response:
    """Report that the process is alive."""
    return Response(_answer(success=True), media_type="application/json")


async def _detect(request: Request, find: Callable[[], ServedModel], command: str) -> Response:
    if request.state.admit is None:
        # Check the model first, so that an unsuitable model is reported before a large body
        # arrives.
        check_task(find(), BOXES)

    async def answer(body: bytes) -> Response:
        kind = request.headers.get("content-type", "")
        images, fields = await run_in_threadpool(read_form, body, kind, 2)
        await admit_late(request, fields.get("api_key", [""])[-1])
        check_task(model := find(), BOXES)
        if len(images) != 1:
            raise InvalidRequest(
                f"the request has {len(images)} images: send one image per request, in the file "
                "field 'image'"
            )
        least = fields.get("min_confidence", [str(_DEFAULT_CONFIDENCE)])[-1]
        options = PredictOptions(conf=share("min_confidence", least), mask="none")
        prediction = await predict_images(request, model, None, [*images], options, _predictions)
        return Response(_write_objects(prediction, command), media_type="application/json")

    return await answer_body(request, answer, deadline(request))


def _key_in(body: bytes, kind: str) -> str:
    """Return the key in a form without an image, or "" if the form has no key."""
    if kind.startswith("multipart/"):
        fields = read_parts(body, kind, 1)[1]
    else:
        fields = parse_qs(body.decode("latin-1"))
    return fields.get("api_key", [""])[-1]


def _write_objects(prediction: Prediction, command: str) -> bytes:
    result = result_of(prediction.images[0])
    assert isinstance(result.found, Detections), "the task of the model has boxes"
    count = len(result.found)
    total_ms = round(prediction.total_ns / 1e6)
    return _answer(
        success=True,
        message=f"Found {counted(count, 'object')}",
        count=count,
        predictions=orjson.Fragment(result.encoded),
        inferenceMs=round(prediction.times.infer / 1e6),
        processMs=total_ms,
        analysisRoundTripMs=total_ms,
        code=200,
        command=command,
    )


def _predictions(result: ImageResult, vocabulary: Vocabulary, options: PredictOptions) -> bytes:
    """Encode the detected objects. Clients expect coordinates in whole pixels."""
    assert result.found is not None, "the task of the model has boxes"
    objects = result.found.to_json(vocabulary, options)["detections"]
    return orjson.dumps(
        [
            {
                "label": each["class_name"],
                "confidence": each["score"],
                "x_min": round(each["box"]["x1"]),
                "y_min": round(each["box"]["y1"]),
                "x_max": round(each["box"]["x2"]),
                "y_max": round(each["box"]["y2"]),
            }
            for each in objects
        ]
    )


def _answer(**fields: object) -> bytes:
    return orjson.dumps({**fields, **_MODULE, "timestampUTC": formatdate(usegmt=True)})


class DeepStack(Feature):
    """Server feature: the API of DeepStack."""

    def router(self) -> APIRouter:
        """Return the routes of the API."""
        return router
