"""The routes of an ML backend, which Label Studio calls.

Source: label_studio_ml 1.0.9, its newer source code, and `ml/api_connector.py` of Label Studio.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from fovea_engines.results.options import MAX_TOP_K, PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import Forbidden, FoveaError, InvalidRequest, Restricted
from fovea_server.feature import Feature
from fovea_server.http.v1.body import Source, json_object
from fovea_server.http.v1.dependencies import (
    ModelName,
    answer_body,
    call_of,
    check_control,
    inferring,
    parse_json_body,
    require_access,
    service_of,
)
from fovea_server.integrations.label_studio.config import TASKS, Control, check_labels, controls_for
from fovea_server.integrations.label_studio.hosts import Hosts
from fovea_server.integrations.label_studio.regions import regions
from fovea_server.integrations.request_handling import (
    deadline,
    default_model,
    models_of,
    predict_images,
    write_errors_with,
)
from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import ImageResult

log = logging.getLogger(__name__)

_TASKS = tuple(sorted({task for tasks in TASKS.values() for task in tasks}))
_JSON = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
# Largest number of tasks in a request. With more tasks, Label Studio's timeout would expire before
# the response.
_MAX_TASKS = 1000

Given = dict[str, Any]


def _error(error: FoveaError) -> bytes:
    return orjson.dumps({"error": str(error)})


async def health() -> Response:
    """Report that the process is alive."""
    return _json({"status": "UP", "model_class": "Fovea"})


async def setup(request: Request) -> Response:
    """Store the server with the files of a project, and return the version of the model."""

    def answer(given: Given) -> Response:
        model = _model(request)
        url, token = given.get("hostname"), given.get("access_token")
        if isinstance(url, str) and url and _hosts(request).is_per_project:
            try:
                check_control(request, "inference")
                _hosts(request).remember(str(given.get("project")), url, str(token or ""))
            except (Restricted, Forbidden) as error:
                # Accept the project, because the operator can still name the server with its files.
                log.warning(
                    "the server does not fetch files from the Label Studio server %.200r: start "
                    "the server with --label-studio-url and --label-studio-token (%s)",
                    url,
                    error,
                )
        try:
            _controls(given.get("schema"), model)
        except InvalidRequest as error:
            # Accept the project, because a new project has no controls yet.
            log.warning("Label Studio project %s: %s", given.get("project"), error)
        return _json({"model_version": _version(model)})

    return await _answer_json(request, answer)


async def validate(request: Request) -> Response:
    """Check that the model can fill in a control of a labelling configuration."""

    def answer(given: Given) -> Response:
        _controls(given.get("config"), _model(request))
        return _json({"status": "ok"})

    return await _answer_json(request, answer)


async def versions(request: Request) -> Response:
    """Return the version of the model that answers requests."""
    return _json({"versions": [_version(_model(request))]})


async def webhook(request: Request) -> Response:
    """Accept and ignore an event. Label Studio sends an event for every annotation."""
    return await _answer_json(request, lambda _: _json({"status": "ok", "result": None}))


async def train() -> Response:
    """Reject a request for training, because this server cannot train models."""
    raise InvalidRequest(
        "this server does not train models: export the annotations, train elsewhere, and build the "
        "new model with `fovea build`"
    )


async def predict(request: Request) -> Response:
    """Run the model on the images of tasks, and return regions for the labelling configuration."""
    model = _model(request)

    async def answer(body: bytes) -> Response:
        given = await parse_json_body(request, body, json_object)
        controls, sources = await run_in_threadpool(_parse_predict, request, given, model)
        options = _options(controls, model.task)
        encode = partial(_prediction, controls=controls, version=_version(model))
        results: list[object] = []
        # Run the images in parts, because Label Studio sends all selected tasks in one request.
        most = service_of(request).settings.max_images
        for few in (sources[at : at + most] for at in range(0, len(sources), most)):
            prediction = await predict_images(request, model, None, few, options, encode)
            for image in prediction.images:
                if not isinstance(image, FoveaError):
                    results.append(orjson.Fragment(image.encoded))
                elif len(sources) == 1:
                    raise image
                else:
                    # Return an empty result for a failed image, because Label Studio assigns
                    # results by position.
                    empty = {"model_version": _version(model), "score": 0.0, "result": []}
                    results.append({**empty, "error": str(image)})
        return _json({"results": results, "model_version": _version(model)})

    return await answer_body(request, answer, deadline(request))


async def _describe_name(name: ModelName) -> None:
    """Declare the model name in the path for the OpenAPI document.

    `_model` reads the name from the path.
    """


def _backend(prefix: str, about: str) -> APIRouter:
    """Return the routes of one backend. `about` becomes a part of the operation IDs."""
    # If the backend is for one model, its path contains the name of the model.
    names = [Depends(_describe_name)] if "{name}" in prefix else []
    made = APIRouter(prefix=prefix, dependencies=names)
    health_, inference, metadata = map(require_access, ("health", "inference", "metadata"))
    for method, endpoint, needed in (
        ("GET", health, health_),
        # Require the right to run models, because this request sets the server from which images
        # are fetched.
        ("POST", setup, inference),
        ("POST", validate, metadata),
        # Older versions of Label Studio use POST for this path, newer versions use GET.
        ("GET", versions, metadata),
        ("POST", versions, metadata),
        ("POST", predict, inferring),
        ("POST", webhook, inference),
        ("POST", train, inference),
    ):
        name = endpoint.__name__
        made.add_api_route(
            f"/{name}",
            endpoint,
            methods=[method],
            dependencies=[needed],
            operation_id=f"label_studio_{method.lower()}_{name}{about}",
            openapi_extra={"requestBody": _JSON} if method == "POST" else None,
        )
    return made


router = APIRouter(tags=["label-studio"], dependencies=[write_errors_with(_error)])
router.include_router(_backend("", ""))
# Each model has its own backend URL, because Label Studio cannot send the name of a model.
router.include_router(_backend("/label-studio/{name}", "_of_model"))


async def _answer_json(request: Request, answer: Callable[[Given], Response]) -> Response:
    async def work(body: bytes) -> Response:
        return await run_in_threadpool(answer, await parse_json_body(request, body, json_object))

    return await answer_body(request, work, deadline(request))


def _model(request: Request) -> ServedModel:
    name = request.path_params.get("name")
    if name is not None:
        models_of(request).check_ready(name)
        return models_of(request).get(name)
    instead = "use the URL http://HOST:PORT/label-studio/MODEL"
    return default_model(service_of(request), call_of(request), "label-studio", _TASKS, instead)


def _hosts(request: Request) -> Hosts:
    state = request.app.state
    if not hasattr(state, "label_studio_hosts"):
        state.label_studio_hosts = Hosts(service_of(request).settings)
    hosts: Hosts = state.label_studio_hosts
    return hosts


def _version(model: ServedModel) -> str:
    return f"{model.name}/{model.version}"


def _controls(xml: object, model: ServedModel) -> list[Control]:
    if not isinstance(xml, str):
        raise InvalidRequest(
            "the request has no labelling configuration: set up the labelling interface of the "
            "project"
        )
    return controls_for(xml, model.name, model.task)


def _parse_predict(
    request: Request, given: Given, model: ServedModel
) -> tuple[list[Control], list[Source]]:
    controls = _controls(given.get("label_config"), model)
    check_labels(controls, model)
    return controls, _sources(request, given, controls[0].key)


def _sources(request: Request, given: Given, key: str) -> list[Source]:
    tasks = given.get("tasks")
    if not isinstance(tasks, list):
        raise InvalidRequest("the request must have a list of tasks")
    if len(tasks) > _MAX_TASKS:
        raise InvalidRequest(
            f"the request has {len(tasks)} tasks, but at most {_MAX_TASKS} are allowed: select "
            "fewer tasks"
        )
    hosts, project = _hosts(request), str(given.get("project"))
    sources = []
    for index, task in enumerate(tasks):
        match task:
            case {"data": {**data}} if isinstance(address := data.get(key), str):
                sources.append(hosts.source(project, task.get("id"), address))
            case _:
                raise InvalidRequest(f"tasks[{index}] has no image URL in data.{key}")
    return sources


def _options(controls: list[Control], task: str) -> PredictOptions:
    if task in ("classify", "attributes"):
        return PredictOptions(top_k=MAX_TOP_K)
    if task in ("semantic", "read"):
        return PredictOptions()
    controls = [control for control in controls if not control.per_region]
    least = [control.least for control in controls if control.least is not None]
    alone = {control.kind for control in controls} <= {"RectangleLabels", "KeyPointLabels"}
    conf = min(least) if len(least) == len(controls) else min([*least, PredictOptions().conf])
    return PredictOptions(conf=conf, mask="none" if alone else "rle")


def _prediction(
    result: ImageResult,
    vocabulary: Vocabulary,
    options: PredictOptions,
    controls: list[Control],
    version: str,
) -> bytes:
    found = regions(result, vocabulary, controls)
    scores = [region["score"] for region in found if "score" in region]
    score = sum(scores) / len(scores) if scores else 0.0
    answer = {"model_version": version, "score": score, "result": found}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _json(document: Given) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")


class LabelStudio(Feature):
    """Server feature: the API of Label Studio's ML backends."""

    def router(self) -> APIRouter:
        """Return the routes of the API."""
        return router
