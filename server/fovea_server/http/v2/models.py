"""The endpoints for health, metadata, statistics and the model repository.

Triton's responses to health requests have no body. KServe's clients read the body, so Fovea sends a
body.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fovea_preprocess.errors import (
    InvalidRequest,
    LoadFailed,
    MalformedJson,
    ModelNotReady,
    NotFound,
)
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.v2_documents import (
    refuse_repository,
    server_metadata,
)
from fovea_server.http.base64_text import base64_bytes
from fovea_server.http.messages import Request, Response
from fovea_server.http.v2.answers import json_answer
from fovea_server.models.model import State
from fovea_server.tensors.triton_json import as_bool, as_string, find, parse_json, read


async def server(service: Service, request: Request) -> Response:
    """Return the server's name, version and extensions."""
    return json_answer(server_metadata(service.settings))


async def model(service: Service, request: Request) -> Response:
    """Return a model's versions, inputs and outputs.

    In addition to Triton's fields, a model for images has `image_outputs`, and a promoted model has
    `current_version`.
    """
    found = service.models.find(request.name("model"), request.version)
    plane = service.plane
    more = plane.models.image_outputs(found) | plane.models.current_version(found)
    return json_answer(plane.models.metadata(found) | more)


async def config(service: Service, request: Request) -> Response:
    """Return the complete configuration of a model."""
    found = service.models.find(request.name("model"), request.version)
    return Response(body=[found.config_json])


async def statistics(service: Service, request: Request) -> Response:
    """Return the counters of one model or of all models."""
    name, version = request.names["model"], request.version
    return json_answer(service.models.v2_statistics(name, version))


async def live(service: Service, request: Request) -> Response:
    """Report that the process is alive."""
    return json_answer({"live": True})


async def ready(service: Service, request: Request) -> Response:
    """Report whether the server is ready."""
    if service.models.ready:
        return json_answer({"ready": True})
    return _not_ready({"ready": False, "reason": service.models.reason})


async def model_ready(service: Service, request: Request) -> Response:
    """Report whether the version in the path is ready.

    Without a version, report on the current version.
    """
    try:
        model = service.models.get(request.name("model"), request.version)
    except (NotFound, ModelNotReady) as error:
        reason = str(error)
    else:
        if model.state is State.READY:
            return json_answer({"name": model.name, "ready": True})
        reason = model.reason
    reason = service.models.visible_reason(request.name("model"), reason)
    return _not_ready({"error": "Model version not ready", "ready": False, "reason": reason})


def _not_ready(value: dict[str, object]) -> Response:
    # The status of a failed check is 400 instead of 503, because clients and probes of Triton
    # expect 400.
    answer = json_answer(value)
    answer.status = 400
    return answer


async def index(service: Service, request: Request) -> Response:
    """Return the models of the repository: all models, or only the ready models."""
    given = await service.json.run(request.body, partial(_body, request))
    ready = as_bool(find(given, "ready", False))
    entries = map(asdict, service.models.index(ready))
    return json_answer([{k: value for k, value in entry.items() if value} for entry in entries])


async def load(service: Service, request: Request) -> Response:
    """Load a model, or reload it."""
    refuse_repository(request.names["repository"])
    # Parse the request in a thread if it is large: it may contain the files of a model.
    config, files = await service.json.run(request.body, partial(_read_files, request))
    await service.models.load(request.name("model"), config=config, files=files)
    return Response()


def _read_files(request: Request) -> tuple[str | None, dict[str, bytes]]:
    """Return the configuration and the files in a load request."""
    config, files = None, {}
    for name, value in _parameters(request).items():
        text = as_string(value)
        if name == "config":
            config = text
        elif not name.startswith("file:"):
            raise LoadFailed("unexpected error on creating Triton parameter")
        else:
            try:
                files[name.removeprefix("file:")] = base64_bytes(text)
            except ValueError:
                raise InvalidRequest(f"'{name}' is not base64") from None
    return config, files


async def unload(service: Service, request: Request) -> Response:
    """Unload a model. With `unload_dependents`, also unload the models that it depends on."""
    refuse_repository(request.names["repository"])
    field = "unload_dependents"
    parameters = await service.json.run(request.body, partial(_parameters, request))
    dependents = read(field, as_bool, find(parameters, field, False))
    await service.models.unload(request.name("model"), dependents=dependents)
    return Response()


def _body(request: Request) -> object:
    return parse_json(request.body) if request.body else {}


def _parameters(request: Request) -> dict[str, object]:
    given = find(_body(request), "parameters", {})
    if type(given) is not dict:
        raise MalformedJson("attempt to get members of a non-object")
    return given
