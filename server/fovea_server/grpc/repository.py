"""Calls of the model repository extension."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.refusals import refuse_repository
from fovea_server.dataplane.service import Service

_CHOICE = "parameter_choice"


class RepositoryCalls:
    """The model repository extension."""

    def __init__(self, service: Service) -> None:
        self._plane = service.plane

    async def index(
        self, request: messages.RepositoryIndexRequest
    ) -> messages.RepositoryIndexResponse:
        """RepositoryIndex: all models, or those that are ready."""
        refuse_repository(request.repository_name)
        answer = messages.RepositoryIndexResponse()
        for entry in self._plane.index(request.ready):
            answer.models.add(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
        return answer

    async def load(
        self, request: messages.RepositoryModelLoadRequest
    ) -> messages.RepositoryModelLoadResponse:
        """RepositoryModelLoad: load or reload a model, also from files in the request."""
        refuse_repository(request.repository_name)
        config, files = None, {}
        for name, parameter in request.parameters.items():
            if name == "config":
                config = _value(name, parameter, "string_param")
            elif name.startswith("file:"):
                files[name.removeprefix("file:")] = _value(name, parameter, "bytes_param")
            else:
                raise InvalidRequest(f"unrecognized load parameter '{name}'.")
        await self._plane.load(request.model_name, config=config, files=files)
        return messages.RepositoryModelLoadResponse()

    async def unload(
        self, request: messages.RepositoryModelUnloadRequest
    ) -> messages.RepositoryModelUnloadResponse:
        """RepositoryModelUnload: unload a model, on request with the models that it runs."""
        refuse_repository(request.repository_name)
        dependents = False
        if "unload_dependents" in request.parameters:
            parameter = request.parameters["unload_dependents"]
            if parameter.WhichOneof(_CHOICE) != "bool_param":
                raise InvalidRequest(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            dependents = parameter.bool_param
        await self._plane.unload(request.model_name, dependents=dependents)
        return messages.RepositoryModelUnloadResponse()


def _value(name: str, parameter: messages.ModelRepositoryParameter, kind: str) -> Any:
    if parameter.WhichOneof(_CHOICE) != kind:
        raise InvalidRequest(f"invalid value type for load parameter '{name}', expected {kind}.")
    return getattr(parameter, kind)
