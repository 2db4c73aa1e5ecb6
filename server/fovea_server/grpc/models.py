"""Calls about the server and its models."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as messages

from fovea_engines.repository.model_config import config_message
from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_server.dataplane.metadata import server_metadata
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.statistics_json import statistics_json
from fovea_server.grpc.versions import version_of
from fovea_server.models.model import State


class ModelCalls:
    """Answers health, metadata, configuration and statistics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._plane = service.plane

    async def live(self, request: messages.ServerLiveRequest) -> messages.ServerLiveResponse:
        """ServerLive: the process answers."""
        return messages.ServerLiveResponse(live=True)

    async def ready(self, request: messages.ServerReadyRequest) -> messages.ServerReadyResponse:
        """ServerReady: all models of the start are loaded."""
        return messages.ServerReadyResponse(ready=self._plane.ready)

    async def model_ready(self, request: messages.ModelReadyRequest) -> messages.ModelReadyResponse:
        """ModelReady: also false for an unknown model."""
        version = version_of(request.version)
        try:
            model = self._plane.get(request.name, version)
        except (NotFound, ModelNotReady):
            return messages.ModelReadyResponse(ready=False)
        return messages.ModelReadyResponse(ready=model.state is State.READY)

    async def server_metadata(
        self, request: messages.ServerMetadataRequest
    ) -> messages.ServerMetadataResponse:
        """ServerMetadata: name, version and extensions."""
        return ParseDict(server_metadata(self._service), messages.ServerMetadataResponse())

    async def metadata(
        self, request: messages.ModelMetadataRequest
    ) -> messages.ModelMetadataResponse:
        """ModelMetadata: versions, inputs and outputs."""
        model = self._plane.find(request.name, version_of(request.version))
        return ParseDict(self._plane.metadata(model), messages.ModelMetadataResponse())

    async def config(self, request: messages.ModelConfigRequest) -> messages.ModelConfigResponse:
        """ModelConfig: the complete configuration."""
        model = self._plane.find(request.name, version_of(request.version))
        return messages.ModelConfigResponse(config=config_message(model.config))

    async def statistics(
        self, request: messages.ModelStatisticsRequest
    ) -> messages.ModelStatisticsResponse:
        """ModelStatistics: of one model, or of all that are ready."""
        version = version_of(request.version)
        counted = statistics_json(self._plane, request.name or None, version)
        return ParseDict(counted, messages.ModelStatisticsResponse())
