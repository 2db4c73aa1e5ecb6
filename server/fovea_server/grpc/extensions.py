"""Calls of the shared memory, trace and logging extensions."""

from __future__ import annotations

import asyncio

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service

# Setting of the log -> its field, and Triton's name of that.
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
) -> messages.SystemSharedMemoryStatusResponse:
    """List one region, or all."""
    answer = messages.SystemSharedMemoryStatusResponse()
    for region in service.system_shared_memory.status(request.name or None):
        added = answer.regions[region.name]
        added.name, added.key = region.name, region.key
        added.offset, added.byte_size = region.offset, region.byte_size
    return answer


async def register_system(
    service: Service, request: messages.SystemSharedMemoryRegisterRequest
) -> messages.SystemSharedMemoryRegisterResponse:
    """Register a region."""
    service.system_shared_memory.register(
        request.name, request.key, request.offset, request.byte_size
    )
    return messages.SystemSharedMemoryRegisterResponse()


async def unregister_system(
    service: Service, request: messages.SystemSharedMemoryUnregisterRequest
) -> messages.SystemSharedMemoryUnregisterResponse:
    """Unregister one region, or all."""
    service.system_shared_memory.unregister(request.name or None)
    return messages.SystemSharedMemoryUnregisterResponse()


async def cuda_status(
    service: Service, request: messages.CudaSharedMemoryStatusRequest
) -> messages.CudaSharedMemoryStatusResponse:
    """List one region, or all."""
    answer = messages.CudaSharedMemoryStatusResponse()
    for region in service.cuda_shared_memory.status(request.name or None):
        added = answer.regions[region.name]
        added.name, added.device_id = region.name, region.device_id
        added.byte_size = region.byte_size
    return answer


async def register_cuda(
    service: Service, request: messages.CudaSharedMemoryRegisterRequest
) -> messages.CudaSharedMemoryRegisterResponse:
    """Register a region; the first on a GPU opens the device."""
    await asyncio.to_thread(
        service.cuda_shared_memory.register,
        request.name,
        request.raw_handle,
        request.device_id,
        request.byte_size,
    )
    return messages.CudaSharedMemoryRegisterResponse()


async def unregister_cuda(
    service: Service, request: messages.CudaSharedMemoryUnregisterRequest
) -> messages.CudaSharedMemoryUnregisterResponse:
    """Unregister one region, or all."""
    service.cuda_shared_memory.unregister(request.name or None)
    return messages.CudaSharedMemoryUnregisterResponse()


async def trace(
    service: Service, request: messages.TraceSettingRequest
) -> messages.TraceSettingResponse:
    """Change the given settings, and report all."""
    model = request.model_name or None
    given = {
        name: _trace_value(name, list(setting.value)) for name, setting in request.settings.items()
    }
    settings = service.trace.update(model, given) if given else service.trace.get(model)
    answer = messages.TraceSettingResponse()
    for name, value in settings.items():
        answer.settings[name].value.extend(value if isinstance(value, list) else [value])
    return answer


async def log(
    service: Service, request: messages.LogSettingsRequest
) -> messages.LogSettingsResponse:
    """Change the given settings, and report all."""
    given = {
        name: _log_value(name, setting)
        for name, setting in request.settings.items()
        if name in _LOG
    }
    settings = service.log_settings.update(given) if given else service.log_settings.get()
    answer = messages.LogSettingsResponse()
    for name, value in settings.items():
        setattr(answer.settings[name], _LOG[name][0], value)
    return answer


def _trace_value(name: str, values: list[str]) -> list[str] | str | None:
    """Convert to the value in JSON: None resets a setting."""
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
