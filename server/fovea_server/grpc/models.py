"""Calls about the server, its models and their repository."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as messages

from fovea_engines.repository.model_config import config_message
from fovea_preprocess.errors import InvalidRequest, ModelNotReady, NotFound
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.v2 import refuse_repository, server_metadata, statistics_json
from fovea_server.extensions.leading_number import leading_number
from fovea_server.models.model import State

_MOST = 2**63 - 1


def version_of(text: str) -> int | None:
    """Parse a version; None for "", which leaves the choice to the server.

    Raises:
        InvalidRequest: it is no number, or below 0; Triton's text.
    """
    if not text:
        return None
    version = leading_number(text)
    if version is None or abs(version) > _MOST:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidRequest(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version


async def live(
    service: Service, request: messages.ServerLiveRequest
) -> messages.ServerLiveResponse:
    """Report that the process is live."""
    return messages.ServerLiveResponse(live=True)


async def ready(
    service: Service, request: messages.ServerReadyRequest
) -> messages.ServerReadyResponse:
    """Report if all models of the start are loaded."""
    return messages.ServerReadyResponse(ready=service.plane.ready)


async def model_ready(
    service: Service, request: messages.ModelReadyRequest
) -> messages.ModelReadyResponse:
    """Report if a model is ready; an unknown one is not."""
    version = version_of(request.version)
    try:
        model = service.plane.get(request.name, version)
    except (NotFound, ModelNotReady):
        return messages.ModelReadyResponse(ready=False)
    return messages.ModelReadyResponse(ready=model.state is State.READY)


async def server(
    service: Service, request: messages.ServerMetadataRequest
) -> messages.ServerMetadataResponse:
    """Answer with the server's name, version and extensions."""
    return ParseDict(server_metadata(service.settings), messages.ServerMetadataResponse())


async def model(
    service: Service, request: messages.ModelMetadataRequest
) -> messages.ModelMetadataResponse:
    """Answer with a model's versions, inputs and outputs."""
    found = service.plane.find(request.name, version_of(request.version))
    return ParseDict(service.plane.metadata(found), messages.ModelMetadataResponse())


async def config(
    service: Service, request: messages.ModelConfigRequest
) -> messages.ModelConfigResponse:
    """Answer with the complete configuration of a model."""
    found = service.plane.find(request.name, version_of(request.version))
    return messages.ModelConfigResponse(config=config_message(found.config))


async def statistics(
    service: Service, request: messages.ModelStatisticsRequest
) -> messages.ModelStatisticsResponse:
    """Answer with the counters of one model, or of all that are ready."""
    version = version_of(request.version)
    counted = statistics_json(service.plane, request.name or None, version)
    return ParseDict(counted, messages.ModelStatisticsResponse())


async def index(
    service: Service, request: messages.RepositoryIndexRequest
) -> messages.RepositoryIndexResponse:
    """List every model of the repository, or those that are ready."""
    refuse_repository(request.repository_name)
    answer = messages.RepositoryIndexResponse()
    for entry in service.plane.index(request.ready):
        answer.models.add(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
    return answer


async def load(
    service: Service, request: messages.RepositoryModelLoadRequest
) -> messages.RepositoryModelLoadResponse:
    """Load or reload a model, also from files in the request."""
    refuse_repository(request.repository_name)
    config, files = None, {}
    for name, parameter in request.parameters.items():
        if name == "config":
            config = _value(name, parameter, "string_param")
        elif name.startswith("file:"):
            files[name.removeprefix("file:")] = _value(name, parameter, "bytes_param")
        else:
            raise InvalidRequest(f"unrecognized load parameter '{name}'.")
    await service.plane.load(request.model_name, config=config, files=files)
    return messages.RepositoryModelLoadResponse()


async def unload(
    service: Service, request: messages.RepositoryModelUnloadRequest
) -> messages.RepositoryModelUnloadResponse:
    """Unload a model, and on request the models that it depends on."""
    refuse_repository(request.repository_name)
    dependents = False
    if "unload_dependents" in request.parameters:
        parameter = request.parameters["unload_dependents"]
        if parameter.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidRequest(
                "invalid value type for 'unload_dependents' parameter, expected bool_param."
            )
        dependents = parameter.bool_param
    await service.plane.unload(request.model_name, dependents=dependents)
    return messages.RepositoryModelUnloadResponse()


def _value(name: str, parameter: messages.ModelRepositoryParameter, kind: str) -> Any:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for load parameter '{name}', expected {kind}.")
    return getattr(parameter, kind)
