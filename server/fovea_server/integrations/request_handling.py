"""Runs a model on the images of another API's request, and counts and answers as /v1 does."""

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
"""The tasks that find objects with a box."""

T = TypeVar("T")

# Bodies that are read before their key is known hold a small part of the memory for all.
_MAX_OF_STRANGERS, _MAX_STRANGERS = 16 << 20, 8


def default_model(
    service: Service, call: Call, api: str, tasks: tuple[str, ...], instead: str
) -> ServedModel:
    """Find the model for requests that name none: that of the operator, or the only one.

    Args:
        service: of the server.
        call: the request, whose key may allow some models only.
        api: where the operator may have named a model.
        tasks: that its answers can express.
        instead: how a client can name the model, as an imperative.

    Raises:
        InvalidRequest: there is none, or there are several.
        NotFound, ModelNotReady: that of the operator is not there, or cannot answer.
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
            f"no model that is ready answers with {', '.join(tasks)}; GET /v1/models lists the "
            "models and why one is not ready"
        )
    shown = ", ".join(filter(service.authenticator.sees, names))
    raise InvalidRequest(
        f"several models can answer{f' ({shown})' if shown else ''}: {instead}, or start the "
        f"server with --api {api}=MODEL"
    )


def check_task(model: ServedModel, tasks: tuple[str, ...]) -> None:
    """Refuse a model that is ready, and whose answers an API has no form for."""
    if model.state is State.READY and model.task not in tasks:
        raise InvalidRequest(
            f"the task of model '{model.name}' is {model.task}, and this API has answers for "
            f"{', '.join(tasks)}: ask POST /v1/models/{model.name}/predict"
        )


def write_errors_with(write: Callable[[FoveaError], bytes]) -> Any:
    """Make a dependency of routes whose errors have a form of their own."""

    async def chosen(request: Request) -> None:
        request.state.write_error = write

    return Depends(chosen)


async def _take_field_key(request: Request) -> None:
    call_of(request).take_field_key(request.url.query)


query_key = Depends(_take_field_key)
"""Dependency of an API whose clients send their keys in the address, as `api_key`."""


def admit_by_body(*admissions: Any) -> Any:
    """Postpone the dependencies that admit a request until its body is read: see `admit_late`.

    What has a key in its head is admitted at once; so is what has no body that may have one, and
    what would be too much to hold for strangers.
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
                    "too many requests send their key in the body: send it as X-API-Key", 1.0
                )
            if not late:
                await admit(request)
            yield
        finally:
            state.strangers -= late

    return Depends(check)


async def parse_late(request: Request, body: bytes, work: Callable[[bytes, int], T]) -> T:
    """Await `work`, which parses a body; of a client without a key it may be a small one alone."""
    most = MAX_WEIGHT if request.state.admit is None else MAX_OF_STRANGERS
    return await parse_json_body(request, body, work, most)


async def admit_late(request: Request, key: object) -> None:
    """Admit a request that had no key in its head, by the key in its body; "" for none."""
    if request.state.admit is not None:
        call_of(request).field_key = str(key or "")
        await request.state.admit(request)
        request.state.admit = None


def models_of(request: Request) -> Models:
    """Return the models of the server that answers a request."""
    return service_of(request).models


def deadline(request: Request) -> float | None:
    """Return the seconds that a request may take, as its header says; None for no limit."""
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
    """Run a model on images, which may be addresses; the request is counted as one for it."""
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
    """Read a number from 0 to 1; InvalidOption names it where it is none."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InvalidOption(f"{name} is '{str(value)[:60]}'; it must be a number from 0 to 1")
    return number
