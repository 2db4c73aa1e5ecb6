"""The protocol extensions of a server, which all its transports share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fovea_preprocess.errors import InvalidRequest, Unavailable, Unsupported
from fovea_server.logs import FORMATS, SERVER_LOG, ServerLog
from fovea_server.settings import Settings
from fovea_server.tensors.shared_memory import CudaSharedMemory, SharedRegions, SystemSharedMemory
from fovea_server.tensors.triton_json import as_bool, as_string, as_unsigned
from fovea_server.traffic.triton_trace import TraceSettings

_SEVERITIES = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
# Largest verbosity, because the verbosity is an int32 in Triton and in the gRPC message.
_MAX_VERBOSE = 2**31 - 1


class LogSettings:
    """The log settings, with the names that requests use."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def get(self) -> dict[str, Any]:
        """Return the log settings by name.

        The names are log_file, log_info, log_warning, log_error, log_verbose_level and log_format.
        """
        return {
            "log_file": "" if self._log.file is None else str(self._log.file),
            **{name: severity in self._log.severities for name, severity in _SEVERITIES.items()},
            "log_verbose_level": self._log.verbose,
            "log_format": self._log.format,
        }

    def update(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Change the known settings in `given`, and return all settings.

        A value of None changes nothing.

        Raises:
            Unsupported: `given` has log_file.
            MalformedJson: a value has the wrong type.
            InvalidRequest: log_verbose_level is out of range.
            Unavailable: the format is unknown.
        """
        given = {name: value for name, value in given.items() if value is not None}
        if "log_file" in given:
            raise Unsupported("log file location can not be updated through network protocol")
        levels = {
            severity
            for name, severity in _SEVERITIES.items()
            if as_bool(given.get(name, severity in self._log.severities))
        }
        verbose = as_unsigned(given.get("log_verbose_level", self._log.verbose))
        if verbose > _MAX_VERBOSE:
            raise InvalidRequest(
                f"log_verbose_level is {verbose}; it must be from 0 to {_MAX_VERBOSE}"
            )
        if "log_format" in given:
            wanted = as_string(given["log_format"])
            if wanted not in FORMATS:
                raise Unavailable(f"invalid argument for --log_format, got: {wanted}")
            self._log.format = FORMATS[wanted]
        self._log.set_severities(frozenset(levels), verbose)
        return self.get()


class Extensions:
    """Shared memory, trace settings and log settings of one server.

    Args:
        settings: settings of the server.
        find: function that raises NotFound if no model has the given name.

    Raises:
        InvalidOption: a trace setting is invalid.
    """

    def __init__(self, settings: Settings, find: Callable[[str], object]) -> None:
        self.system_shared_memory = SystemSharedMemory(settings.allow_client_shm)
        self.cuda_shared_memory = CudaSharedMemory(settings.allow_client_shm)
        self.regions = SharedRegions(self.system_shared_memory, self.cuda_shared_memory)
        self.trace = TraceSettings(settings.trace_config, find)
        self.log_settings = LogSettings(SERVER_LOG)

    def close(self) -> None:
        """Release GPU memory. A second call does nothing."""
        self.cuda_shared_memory.close()
