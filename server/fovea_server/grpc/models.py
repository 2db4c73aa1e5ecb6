"""gRPC methods for the health of the server, for its models and for the model repository."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from fovea_engines.repository.config_pbtxt import config_message
from fovea_preprocess.errors import InvalidRequest, ModelNotReady, NotFound
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.v2_documents import refuse_repository, server_metadata
from fovea_server.grpc.calls import Context, Rpc
from fovea_server.grpc.infer_request import version_of
from fovea_server.grpc.parameters import value_of
from fovea_server.models.model import State

Fields = dict[str, Any]

_SERVING = bytes([1 << 3, 1])
_NOT_SERVING = bytes([1 << 3, 2])
# Time in seconds between two checks of the status in a Watch call.
_LOOK_S = 0.5


async def live(service: Service, request: messages.ServerLiveRequest) -> Fields:
    """Report that the process is alive."""
    return {"live": True}


async def ready(service: Service, request: messages.ServerReadyRequest) -> Fields:
    """Report whether all models of the start are loaded."""
    return {"ready": service.models.ready}


async def model_ready(service: Service, request: messages.ModelReadyRequest) -> Fields:
    """Report whether a model is ready. An unknown model is not ready."""
    version = version_of(request.version)
    try:
        model = service.models.get(request.name, version)
    except (NotFound, ModelNotReady):
        return {"ready": False}
    return {"ready": model.state is State.READY}


async def server(service: Service, request: messages.ServerMetadataRequest) -> Fields:
    """Return the server's name, version and extensions."""
    return server_metadata(service.settings)


async def model(service: Service, request: messages.ModelMetadataRequest) -> Fields:
    """Return the versions, inputs and outputs of a model."""
    found = service.models.find(request.name, version_of(request.version))
    return service.models.metadata(found)


async def config(
    service: Service, request: messages.ModelConfigRequest
) -> messages.ModelConfigResponse:
    """Return the complete configuration of a model."""
    found = service.models.find(request.name, version_of(request.version))
    return messages.ModelConfigResponse(config=config_message(found.config))


async def statistics(service: Service, request: messages.ModelStatisticsRequest) -> Fields:
    """Return the counters of one model, or of all models that are ready."""
    return service.models.v2_statistics(request.name or None, version_of(request.version))


async def index(service: Service, request: messages.RepositoryIndexRequest) -> Fields:
    """Return the models of the repository: all models, or only the ready models."""
    refuse_repository(request.repository_name)
    return {"models": [_entry(**asdict(one)) for one in service.models.index(request.ready)]}


def _entry(*, current: bool, reason: str | None, **fields: str | None) -> Fields:
    # Return "current" as the reason of the current version, because Triton's message has no field
    # for it.
    return {**fields, "reason": reason or ("current" if current else None)}


async def load(service: Service, request: messages.RepositoryModelLoadRequest) -> Fields:
    """Load a model, or reload it.

    The request may contain a configuration and files for the model.
    """
    refuse_repository(request.repository_name)
    config, files = None, {}
    for name, parameter in request.parameters.items():
        if name == "config":
            config = value_of(parameter, f"load parameter '{name}'", "string_param")
        elif name.startswith("file:"):
            file = value_of(parameter, f"load parameter '{name}'", "bytes_param")
            files[name.removeprefix("file:")] = file
        else:
            raise InvalidRequest(f"unrecognized load parameter '{name}'.")
    await service.models.load(request.model_name, config=config, files=files)
    return {}


async def unload(service: Service, request: messages.RepositoryModelUnloadRequest) -> Fields:
    """Unload a model. With `unload_dependents`, also unload the models that it depends on."""
    refuse_repository(request.repository_name)
    name, dependents = "unload_dependents", False
    if name in request.parameters:
        dependents = value_of(request.parameters[name], f"'{name}' parameter", "bool_param")
    await service.models.unload(request.model_name, dependents=dependents)
    return {}


class HealthCalls:
    """The service grpc.health.v1 for probes of Kubernetes and load balancers.

    The status is the same for every service name, as in Triton. The code encodes the small messages
    without protobuf: field 1 of the response is the status.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._closed = asyncio.Event()

    async def check(self, request: object) -> bytes:
        """Return the current status."""
        return _SERVING if self._plane.models.ready else _NOT_SERVING

    async def watch(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        """Send the current status and each later change, until the server stops."""
        sent = b""
        while not self._closed.is_set():
            if (status := await self.check(None)) != sent:
                sent = status
                await rpc.write(sent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._closed.wait()
        if sent != _NOT_SERVING:
            await rpc.write(_NOT_SERVING)

    def close(self) -> None:
        """End all Watch calls."""
        self._closed.set()
