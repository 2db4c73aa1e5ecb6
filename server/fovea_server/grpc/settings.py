"""Calls of the trace and logging extensions."""

from __future__ import annotations

from typing import Any

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


class SettingsCalls:
    """The trace and logging extensions."""

    def __init__(self, service: Service) -> None:
        self._trace = service.trace
        self._log = service.log_settings

    async def trace(self, request: Any) -> Any:
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

    async def log(self, request: Any) -> Any:
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


def _log_value(name: str, setting: Any) -> Any:
    field, kind = _LOG[name]
    if setting.WhichOneof("parameter_choice") != field:
        raise InvalidRequest(f"expect {kind} for '{name}'")
    return getattr(setting, field)
