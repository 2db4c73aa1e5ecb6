"""Calls of the shared memory, trace and logging extensions."""

from __future__ import annotations

import asyncio

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service


class SharedMemoryCalls:
    """The shared memory extensions."""

    def __init__(self, service: Service) -> None:
        self._system = service.system_shared_memory
        self._cuda = service.cuda_shared_memory

    async def system_status(
        self, request: messages.SystemSharedMemoryStatusRequest
    ) -> messages.SystemSharedMemoryStatusResponse:
        """SystemSharedMemoryStatus: list one region, or all."""
        answer = messages.SystemSharedMemoryStatusResponse()
        for region in self._system.status(request.name or None):
            added = answer.regions[region.name]
            added.name, added.key = region.name, region.key
            added.offset, added.byte_size = region.offset, region.byte_size
        return answer

    async def register_system(
        self, request: messages.SystemSharedMemoryRegisterRequest
    ) -> messages.SystemSharedMemoryRegisterResponse:
        """SystemSharedMemoryRegister: register a region."""
        self._system.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def unregister_system(
        self, request: messages.SystemSharedMemoryUnregisterRequest
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        """SystemSharedMemoryUnregister: unregister one region, or all."""
        self._system.unregister(request.name or None)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(
        self, request: messages.CudaSharedMemoryStatusRequest
    ) -> messages.CudaSharedMemoryStatusResponse:
        """CudaSharedMemoryStatus: list one region, or all."""
        answer = messages.CudaSharedMemoryStatusResponse()
        for region in self._cuda.status(request.name or None):
            added = answer.regions[region.name]
            added.name, added.device_id = region.name, region.device_id
            added.byte_size = region.byte_size
        return answer

    async def register_cuda(
        self, request: messages.CudaSharedMemoryRegisterRequest
    ) -> messages.CudaSharedMemoryRegisterResponse:
        """CudaSharedMemoryRegister: register a region; the first on a GPU opens the device."""
        await asyncio.to_thread(
            self._cuda.register,
            request.name,
            request.raw_handle,
            request.device_id,
            request.byte_size,
        )
        return messages.CudaSharedMemoryRegisterResponse()

    async def unregister_cuda(
        self, request: messages.CudaSharedMemoryUnregisterRequest
    ) -> messages.CudaSharedMemoryUnregisterResponse:
        """CudaSharedMemoryUnregister: unregister one region, or all."""
        self._cuda.unregister(request.name or None)
        return messages.CudaSharedMemoryUnregisterResponse()


# Setting of the log -> its field, and Triton's name of that.
_LOG = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


class SettingsCalls:
    """The trace and logging extensions."""

    def __init__(self, service: Service) -> None:
        self._trace = service.trace
        self._log = service.log_settings

    async def trace(self, request: messages.TraceSettingRequest) -> messages.TraceSettingResponse:
        """TraceSetting: change the given settings, and report all."""
        model = request.model_name or None
        given = {
            name: _trace_value(name, list(setting.value))
            for name, setting in request.settings.items()
        }
        settings = self._trace.update(model, given) if given else self._trace.get(model)
        answer = messages.TraceSettingResponse()
        for name, value in settings.items():
            answer.settings[name].value.extend(value if isinstance(value, list) else [value])
        return answer

    async def log(self, request: messages.LogSettingsRequest) -> messages.LogSettingsResponse:
        """LogSettings: change the given settings, and report all."""
        given = {
            name: _log_value(name, setting)
            for name, setting in request.settings.items()
            if name in _LOG
        }
        settings = self._log.update(given) if given else self._log.get()
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
