"""The logging extension: changes the settings of the log while the server runs.

Source: "Logging Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fovea_preprocess.errors import InvalidRequest, Unavailable, Unsupported
from fovea_server.logs import FORMATS, ServerLog
from fovea_server.tensors.triton_json import as_bool, as_string, as_unsigned

_SEVERITIES = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
# An int32 in Triton and in the gRPC message.
_MAX_VERBOSE = 2**31 - 1


class LogSettings:
    """The settings of a log, under the names in requests."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def get(self) -> dict[str, Any]:
        """Report log_file, log_info, log_warning, log_error, log_verbose_level and log_format."""
        return {
            "log_file": "" if self._log.file is None else str(self._log.file),
            **{name: severity in self._log.severities for name, severity in _SEVERITIES.items()},
            "log_verbose_level": self._log.verbose,
            "log_format": self._log.format,
        }

    def update(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Change the known settings among `given`, and report all; None leaves a setting as it is.

        Raises:
            Unsupported: the file is given.
            MalformedJson: a value has another type.
            InvalidRequest: the verbosity is out of range.
            Unavailable: there is no such format.
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
