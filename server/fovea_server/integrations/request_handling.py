"""Runs a model on the images in a request to a compatible API.

The metrics and errors are the same as in /v1.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi import Depends, Request

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError, InvalidOption, InvalidRequest, QueueFull
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Encode, Prediction, PredictRequest
from fovea_server.dataplane.service import Service
from fovea_server.http.v1.body import Source
from fovea_server.http.v1.dependencies import call_of, fetch_images, parse_json_body, service_of
from fovea_server.http.v1.request_head import timeout_of
from fovea_server.json_text import MAX_OF_STRANGERS, MAX_WEIGHT
from fovea_server.models.model import ServedModel, State
from fovea_server.tensors.messages import ImageResult
from fovea_server.traffic.call import Call

BOXES = ("detect", "segment", "pose", "obb")
"""Tasks of models that detect objects with boxes."""

T = TypeVar("T")

# Limits for bodies that are read before their API key is known: largest size in bytes, and largest
# number at the same time. Together they can use only a small part of the memory budget.
_MAX_OF_STRANGERS, _MAX_STRANGERS = 16 << 20, 8


def default_model(
    service: Service, call: Call, api: str, tasks: tuple[str, ...], instead: str
) -> ServedModel:
    """Return the model for requests without a model name.

    It is the model that the operator named, or else the only suitable model.

    Args:
        service: service with the models.
        call: call of the request. Its API key may allow only some models.
        api: name of the API in `--api`.
        tasks: tasks whose results the API can represent.
        instead: advice for clients on how to name the model, as an imperative.

    Raises:
        InvalidRequest: no model or several models are suitable.
        NotFound, ModelNotReady: the operator's model does not exist or cannot respond.
    """
    if (named := service.apis[api]) is not None:
        service.models.check_ready(named)
        return service.models.get(named)
    principal = call.principal
    ready = [model for model in service.models if model.state is State.READY]
    names = sorted(
        {
            model.name
            for model in ready
            if model.task in tasks and (principal is None or principal.takes(model.name))
        }
    )
    if len(names) == 1:
        return service.models.get(names[0])
    if not names:
        raise InvalidRequest(
            f"no ready model has one of the tasks {', '.join(tasks)}: see GET /v1/models for all "
            "models, and for the reasons why some are not ready"
        )
    shown = ", ".join(filter(service.authenticator.sees, names))
    raise InvalidRequest(
        f"the request has no model name, and several models are suitable{shown and f' ({shown})'}: "
        f"{instead}, or start the server with --api {api}=MODEL"
    )


def check_task(model: ServedModel, tasks: tuple[str, ...]) -> None:
    """Raise InvalidRequest if the API cannot represent results of the model's task.

    A model that is not ready is not checked.
    """
    if model.state is State.READY and model.task not in tasks:
        raise InvalidRequest(
            f"model '{model.name}' has the task {model.task}, but this API supports only "
            f"{', '.join(tasks)}: use POST /v1/models/{model.name}/predict"
        )


def write_errors_with(write: Callable[[FoveaError], bytes]) -> Any:
    """Make a dependency of routes whose errors have another form. `write` encodes an error."""

    async def chosen(request: Request) -> None:
        request.state.write_error = write

    return Depends(chosen)


async def _take_field_key(request: Request) -> None:
    call_of(request).take_field_key(request.url.query)


query_key = Depends(_take_field_key)
"""Dependency of an API whose clients send their key as `api_key` in the query."""


def admit_by_body(*admissions: Any) -> Any:
    """Make a dependency that can delay the access check until the body is read.

    The check is delayed if the key may be in the body: the head of the request has no key, and the
    body is not too large for an unknown client. The route then calls `admit_late`.
    """

    async def admit(request: Request) -> None:
        for admission in admissions:
            await admission.dependency(request)

    async def check(request: Request) -> AsyncIterator[None]:
        has_key = (
            service_of(request).authenticator.keys is None or call_of(request).token is not None
        )
        size = request.headers.get("content-length", "")
        late = not has_key and size.isdigit() and 0 < int(size) <= _MAX_OF_STRANGERS
        state = request.app.state
        strangers = state.strangers = getattr(state, "strangers", 0) + late
        request.state.admit = admit if late else None
        try:
            if strangers > _MAX_STRANGERS and late:
                raise QueueFull(
                    "too many requests at the same time send their key in the body: send the key "
                    "in the header X-API-Key",
                    1.0,
                )
            if not late:
                await admit(request)
            yield
        finally:
            state.strangers -= late

    return Depends(check)


async def parse_late(request: Request, body: bytes, work: Callable[[bytes, int], T]) -> T:
    """Run `work`, which parses a body.

    If the client has sent no key yet, the body must be small.
    """
    most = MAX_WEIGHT if request.state.admit is None else MAX_OF_STRANGERS
    return await parse_json_body(request, body, work, most)


async def admit_late(request: Request, key: object) -> None:
    """Check the access of a request with the key in its body, unless it was checked before."""
    if request.state.admit is not None:
        call_of(request).field_key = str(key or "")
        await request.state.admit(request)
        request.state.admit = None


def models_of(request: Request) -> Models:
    """Return the models of the server that answers a request."""
    return service_of(request).models


def deadline(request: Request) -> float | None:
    """Return the timeout of a request in seconds from its header, or None if there is none."""
    return timeout_of(request.headers.get("x-request-timeout-ms"))


async def predict_images(
    request: Request,
    model: ServedModel,
    version: int | None,
    sources: list[Source],
    options: PredictOptions,
    encode: Encode,
    *,
    keep_pixels: bool = False,
) -> Prediction:
    """Run a model on images or image URLs, and count the request for the model."""
    call = call_of(request)
    call.model = model.name
    call.enter()
    predict_request = PredictRequest(
        model,
        version,
        await fetch_images(request, sources),
        options,
        timeout_s=deadline(request),
        keep_pixels=keep_pixels,
        encode=encode,
    )
    return await service_of(request).plane.predict(predict_request)


def result_of(image: ImageResult | FoveaError) -> ImageResult:
    """Return the result of an image, or raise its error."""
    if isinstance(image, FoveaError):
        raise image
    return image


def share(name: str, value: object) -> float:
    """Return a number from 0 to 1.

    Raises:
        InvalidOption: the value is not a number from 0 to 1. The message contains `name`.
    """
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InvalidOption(f"{name} is '{str(value)[:60]}'; it must be a number from 0 to 1")
    return number
