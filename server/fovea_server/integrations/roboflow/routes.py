"""The routes of Roboflow's inference server that inference_sdk calls for models of images.

Source: inference_sdk 1.8.3, and the request and response models of roboflow/inference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import orjson
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor

from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.http.v1.answers import drawn
from fovea_server.http.v1.head import query_values
from fovea_server.http.v1.route import answered, inferring, service_of
from fovea_server.integrations.asking import (
    admit_late,
    by_body,
    deadline,
    errors_as,
    models_of,
    parsed_late,
    predicted,
    query_key,
    result_of,
)
from fovea_server.integrations.choosing import check_task
from fovea_server.integrations.roboflow import models
from fovea_server.integrations.roboflow.request import Asked, model_of, parse_legacy, parse_request
from fovea_server.integrations.roboflow.result_json import TASKS, predictions_json, response

_JSON = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
_BASE64 = {"content": {"application/json": {"schema": {"type": "string"}}}}


class Dataset(StringConvertor):
    """The first part of `/NAME/VERSION`: not that of an address of this server's own."""

    regex = "(?!(?:v1|v2|page|docs|label-studio|static-offline-docs)/)[^/]+"


register_url_convertor("dataset", Dataset())


def _error(error: FoveaError) -> bytes:
    return orjson.dumps({"message": str(error)})


router = APIRouter(tags=["roboflow"], dependencies=[errors_as(_error), query_key])
# Before `/NAME/VERSION`, which they look like.
router.include_router(models.router)
router.include_router(models.about)
_INFERENCE = [by_body(inferring)]


async def infer(request: Request) -> Response:
    """Find what is on one image or a list of them, with the model that `model_id` names."""
    work = partial(parse_request, max_images=service_of(request).settings.max_images)
    return await _answered(request, partial(parsed_late, request, work=work))


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
    """Find what is on an image, which is the body in base64, with one version of a model."""
    model_id = f"{dataset}/{version}"
    query = query_values(request.scope["query_string"].decode("latin-1"))
    kind = request.headers.get("content-type", "")
    if request.state.admit is None:
        # An unknown model is reported before a large body is read.
        models_of(request).get(*model_of(model_id))
    work = partial(parse_legacy, model_id, query, kind)
    parse = partial(run_in_threadpool, work)
    return await _answered(request, parse, drawn_alone=query.get("format") == "image")


async def _answered(
    request: Request, parse: Callable[[bytes], Awaitable[Asked]], *, drawn_alone: bool = False
) -> Response:
    async def answer(body: bytes) -> Response:
        asked = await parse(body)
        await admit_late(request, asked.key)
        if not asked.draw:
            prediction, image = await _predicted(request, asked), None
        elif len(asked.sources) > 1:
            raise InvalidRequest("one image at once is drawn on: send one, or ask for no drawing")
        else:
            # Pixels that wait to be drawn on are large: few at a time.
            async with service_of(request).drawing:
                prediction = await _predicted(request, asked)
                result_of(prediction.images[0])
                image = await drawn(service_of(request), prediction, "image/jpeg")
        if drawn_alone:
            return Response(image, media_type="image/jpeg")
        seconds = prediction.total_ns / 1e9
        responses = [
            response(result_of(each), prediction.words, seconds, image)
            for each in prediction.images
        ]
        content = orjson.dumps(responses if asked.several else responses[0])
        return Response(content, media_type="application/json")

    return await answered(request, answer, deadline(request))


async def _predicted(request: Request, asked: Asked) -> Prediction:
    model = models_of(request).get(asked.name, asked.version)
    check_task(model, tuple(TASKS))
    encode = partial(
        predictions_json, least=asked.options.conf, least_keypoint=asked.least_keypoint
    )
    options = asked.options_for(model.task)
    sources = asked.sources
    return await predicted(
        request, model, asked.version, sources, options, encode, keep_pixels=asked.draw
    )


class Roboflow(Feature):
    """Speaks the API of Roboflow's inference server."""

    def router(self) -> APIRouter:
        """Return the routes."""
        return router
