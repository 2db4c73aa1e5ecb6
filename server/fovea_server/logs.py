"""What the server tells the operator: one line an event, to stderr or a file.

Which severities, and how, can change while the server runs (the logging extension).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from fovea_preprocess.errors import InvalidOption
from fovea_server.log_lines import LineFormatter, LogFormat

_PACKAGES = ("fovea_server", "fovea_engines", "fovea_preprocess")
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)


class ServerLog(logging.Filter):
    """The log of this process.

    Attributes:
        file: where it goes; None for stderr.
        told: the severities that are told, of INFO, WARNING and ERROR.
        verbose: above 0, DEBUG is logged too: health probes, scrapes, details.
        format: of the lines: text with local times, text with UTC times, or JSON.
        lines: formats them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file: Path | None = None
        self.told = frozenset(_SEVERITIES)
        self.verbose = 0
        self.format: LogFormat = "default"
        self.lines = LineFormatter(lambda: self.format)
        self._handler: logging.StreamHandler[Any] | None = None

    def open(self, file: Path | None) -> None:
        """Tell everything there from now on.

        Raises:
            InvalidOption: the file cannot be written.
        """
        try:
            handler: logging.StreamHandler[Any] = (
                logging.StreamHandler() if file is None else logging.FileHandler(file)
            )
        except OSError as error:
            raise InvalidOption(f"the log cannot be written to {file}: {error}") from error
        handler.setFormatter(self.lines)
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

    def write(self, text: str) -> None:
        """Write formatted lines; blocks while stderr is a full pipe."""
        handler = self._handler
        if handler is None:
            return
        assert handler.lock is not None, "only a handler after fork has none"
        # A full disk must not stop the server.
        with handler.lock, suppress(OSError, ValueError):
            handler.stream.write(text)
            handler.flush()

    def takes(self, logger: logging.Logger, level: int) -> bool:
        """Whether a record of this logger would be logged; `level` is INFO or DEBUG."""
        return logger.isEnabledFor(level) and (level < logging.INFO or level in self.told)

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
        verbose: above 0, DEBUG is logged too: health probes, scrapes, details.

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
