"""The unary methods of Triton's gRPC service except inference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.grpc import models
from fovea_server.tensors.shared_memory import CudaRegion, SystemRegion

Fields = dict[str, Any]

# Maps each log setting to its field in the message and to Triton's name of its type.
_LOG = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


async def system_status(
    service: Service, request: messages.SystemSharedMemoryStatusRequest
) -> Fields:
    """Return one region or all regions of system memory."""
    return _status(service.extensions.system_shared_memory.status(request.name or None))


async def register_system(
    service: Service, request: messages.SystemSharedMemoryRegisterRequest
) -> Fields:
    """Register a region of system memory."""
    service.extensions.system_shared_memory.register(
        request.name, request.key, request.offset, request.byte_size
    )
    return {}


async def unregister_system(
    service: Service, request: messages.SystemSharedMemoryUnregisterRequest
) -> Fields:
    """Unregister one region or all regions of system memory."""
    service.extensions.system_shared_memory.unregister(request.name or None)
    return {}


async def cuda_status(service: Service, request: messages.CudaSharedMemoryStatusRequest) -> Fields:
    """Return one region or all regions of GPU memory."""
    return _status(service.extensions.cuda_shared_memory.status(request.name or None))


async def register_cuda(
    service: Service, request: messages.CudaSharedMemoryRegisterRequest
) -> Fields:
    """Register a region of GPU memory. The first region on a GPU initializes the GPU."""
    register = service.extensions.cuda_shared_memory.register
    await asyncio.to_thread(
        register, request.name, request.raw_handle, request.device_id, request.byte_size
    )
    return {}


async def unregister_cuda(
    service: Service, request: messages.CudaSharedMemoryUnregisterRequest
) -> Fields:
    """Unregister one region or all regions of GPU memory."""
    service.extensions.cuda_shared_memory.unregister(request.name or None)
    return {}


def _status(regions: Iterable[SystemRegion | CudaRegion]) -> Fields:
    return {"regions": {region.name: asdict(region) for region in regions}}


async def trace(service: Service, request: messages.TraceSettingRequest) -> Fields:
    """Change the given trace settings, and return all settings."""
    model = request.model_name or None
    given = {
        name: _trace_value(name, list(setting.value)) for name, setting in request.settings.items()
    }
    traces = service.extensions.trace
    settings = traces.update(model, given) if given else traces.get(model)
    return {
        "settings": {
            name: {"value": value if isinstance(value, list) else [value]}
            for name, value in settings.items()
        }
    }


async def log(service: Service, request: messages.LogSettingsRequest) -> Fields:
    """Change the given log settings, and return all settings."""
    given = {
        name: _log_value(name, setting)
        for name, setting in request.settings.items()
        if name in _LOG
    }
    of_log = service.extensions.log_settings
    settings = of_log.update(given) if given else of_log.get()
    return {"settings": {name: {_LOG[name][0]: value} for name, value in settings.items()}}


def _trace_value(name: str, values: list[str]) -> list[str] | str | None:
    """Convert a trace setting to its JSON value. The value None resets the setting."""
    if not values:
        return None
    if name == "trace_level":
        return values
    if len(values) > 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    return values[0]


def _log_value(name: str, setting: messages.LogSettingsRequest.SettingValue) -> bool | int | str:
    field, kind = _LOG[name]
    if setting.WhichOneof("parameter_choice") != field:
        raise InvalidRequest(f"expect {kind} for '{name}'")
    value: bool | int | str = getattr(setting, field)
    return value


def has_settings(request: Any) -> bool:
    """Return whether a request changes settings. Other requests only read them."""
    return bool(request.settings)


@dataclass(frozen=True, slots=True)
class Method:
    """A unary method of the service.

    Attributes:
        api: name of the API to which the method belongs, for `--grpc-restricted-protocol`.
        answer: function that returns the response as a message, or as a dict of the message's
            fields.
        changes: True if requests change the server, False if not, or a function that returns this
            for a request.
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
    "SystemSharedMemoryStatus": Method("shared-memory", system_status),
    "SystemSharedMemoryRegister": Method("shared-memory", register_system, changes=True),
    "SystemSharedMemoryUnregister": Method("shared-memory", unregister_system, changes=True),
    "CudaSharedMemoryStatus": Method("shared-memory", cuda_status),
    "CudaSharedMemoryRegister": Method("shared-memory", register_cuda, changes=True),
    "CudaSharedMemoryUnregister": Method("shared-memory", unregister_cuda, changes=True),
    "TraceSetting": Method("trace", trace, changes=has_settings),
    "LogSettings": Method("logging", log, changes=has_settings),
}
