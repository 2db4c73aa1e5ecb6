"""What the server tells the operator: one line an event, to stderr or a file.

Which severities, and how, can change while the server runs (the logging extension).
"""

from __future__ import annotations

import copy
import logging
import time
from pathlib import Path

from fovea_preprocess.errors import InvalidOption

requests = logging.getLogger("fovea_server.requests")
"""A line for each request, at DEBUG; ask `isEnabledFor` before making one."""

_PACKAGES = ("fovea_server", "fovea_engines", "fovea_preprocess")
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)


class ServerLog(logging.Filter):
    """The log of this process.

    Attributes:
        file: where it goes; None for stderr.
        told: the severities that are told, of INFO, WARNING and ERROR.
        verbose: above 0, every request is told, and what helps to find a fault.
        iso8601: whether times are told in UTC as ISO 8601 has them; else local time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file: Path | None = None
        self.told = frozenset(_SEVERITIES)
        self.verbose = 0
        self.iso8601 = False
        self._handler: logging.Handler | None = None

    def open(self, file: Path | None) -> None:
        """Tell everything there from now on.

        Raises:
            InvalidOption: the file cannot be written.
        """
        try:
            handler = logging.StreamHandler() if file is None else logging.FileHandler(file)
        except OSError as error:
            raise InvalidOption(f"the log cannot be written to {file}: {error}") from error
        handler.setFormatter(_Line(self))
        handler.addFilter(self)
        root = logging.getLogger()
        if self._handler is not None:
            root.removeHandler(self._handler)
            self._handler.close()
        root.addHandler(handler)
        self.file, self._handler = file, handler

    def tell(self, told: frozenset[int], verbose: int) -> None:
        """Tell these severities from now on, and this much of what is below them."""
        self.told, self.verbose = told, verbose
        logging.getLogger().setLevel(min(told, default=logging.CRITICAL + 1))
        for package in _PACKAGES:
            logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.NOTSET)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is told."""
        if record.levelno < logging.INFO:
            return True
        return max(level for level in _SEVERITIES if level <= record.levelno) in self.told


SERVER_LOG = ServerLog()
"""One, because a process has one log."""


def set_up_logging(level: str, *, file: Path | None = None, verbose: int = 0) -> None:
    """Open the log.

    Args:
        level: least severity that is told: debug, info, warning or error; debug is `verbose` 1.
        file: where it goes; None for stderr.
        verbose: above 0, every request is told.

    Raises:
        InvalidOption: the file cannot be written.
    """
    SERVER_LOG.open(file)
    least = logging.getLevelNamesMapping()[level.upper()]
    told = frozenset(severity for severity in _SEVERITIES if severity >= least)
    SERVER_LOG.tell(told, verbose or int(least < logging.INFO))
    # What these tell otherwise, of their own steps and of every request, is told here by Fovea.
    for library in ("httpx", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)


class _Line(logging.Formatter):
    def __init__(self, log: ServerLog) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._log = log

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if record.name.startswith("uvicorn"):
            # Whose HTTP server it is, is nothing that the operator chose.
            record = copy.copy(record)
            record.name = "fovea_server.http"
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        if not self._log.iso8601:
            return super().formatTime(record, datefmt)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
