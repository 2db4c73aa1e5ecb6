"""The methods of Triton's service with one request and one answer, except inference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fovea_server.dataplane.service import Service
from fovea_server.grpc import extension_calls as extensions
from fovea_server.grpc import models


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        api: name of its API in restrictions.
        answer: answers a request with a message, or with its fields.
        changes: whether a request changes the server; True where every one does.
    """

    api: str
    answer: Callable[[Service, Any], Awaitable[Message | dict[str, Any]]]
    changes: Callable[[Any], bool] | bool = False


METHODS: Mapping[str, Method] = {
    "ServerLive": Method("health", models.live),
    "ServerReady": Method("health", models.ready),
    "ModelReady": Method("health", models.model_ready),
    "ServerMetadata": Method("metadata", models.server),
    "ModelMetadata": Method("metadata", models.model),
    "ModelConfig": Method("model-config", models.config),
    "ModelStatistics": Method("statistics", models.statistics),
    "RepositoryIndex": Method("model-repository", models.index),
    "RepositoryModelLoad": Method("model-repository", models.load, changes=True),
    "RepositoryModelUnload": Method("model-repository", models.unload, changes=True),
    "SystemSharedMemoryStatus": Method("shared-memory", extensions.system_status),
    "SystemSharedMemoryRegister": Method("shared-memory", extensions.register_system, changes=True),
    "SystemSharedMemoryUnregister": Method(
        "shared-memory", extensions.unregister_system, changes=True
    ),
    "CudaSharedMemoryStatus": Method("shared-memory", extensions.cuda_status),
    "CudaSharedMemoryRegister": Method("shared-memory", extensions.register_cuda, changes=True),
    "CudaSharedMemoryUnregister": Method("shared-memory", extensions.unregister_cuda, changes=True),
    "TraceSetting": Method("trace", extensions.trace, changes=extensions.has_settings),
    "LogSettings": Method("logging", extensions.log, changes=extensions.has_settings),
}
