"""What the server tells the operator: one line an event, to stderr or a file.

Which severities, and how, can change while the server runs (the logging extension).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from fovea_preprocess.errors import InvalidOption
from fovea_server.log_lines import LineFormatter, LogFormat

_PACKAGES = ("fovea_server", "fovea_engines", "fovea_preprocess")
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)
log = logging.getLogger(__name__)

_STDERR = 2
# Lines are written together: one by one they would cost several times as much.
_INTERVAL_S = 0.05
_RETRY_S = 1.0
# Bytes of lines that wait while the log is not read; further lines are dropped, and counted.
_MOST_WAITING = 8 << 20
# How long the end of the process waits for the log.
_PATIENCE_S = 2.0


class _Writer:
    """Writes lines in a thread of its own, so that nobody else waits for a log that is not read.

    The thread is a daemon, and writes to the descriptor itself: no lock is held meanwhile that
    the interpreter needs for its exit.

    Args:
        file: where they go; None for stderr.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, file: Path | None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._descriptor = _STDERR if file is None else os.open(file, flags, 0o666)
        self._file = file
        self._waiting: list[bytes] = []
        self._held = self._dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, text: str) -> None:
        """Take lines; never blocks."""
        lines = text.encode(errors="backslashreplace")
        with self._changed:
            if self._held + len(lines) > _MOST_WAITING:
                self._dropped += 1
                return
            self._held += len(lines)
            self._waiting.append(lines)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all is written, but not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._held or self._dropped), _PATIENCE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                batch, self._waiting = b"".join(self._waiting), []
            self._write_out(batch)
            with self._changed:
                self._held -= len(batch)
                dropped = self._dropped
                self._changed.notify_all()
            if dropped:
                log.warning("%d lines were dropped, as the log was not written in time", dropped)
                with self._changed:
                    self._dropped -= dropped
                    self._changed.notify_all()
            time.sleep(_INTERVAL_S)

    def _write_out(self, batch: bytes) -> None:
        rest, told = memoryview(batch), self._file is None
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if not told:
                    told = True
                    reason = f"the log cannot be written to {self._file}: {error.strerror}"
                    with suppress(OSError):
                        os.write(_STDERR, f"{reason}; it is tried every second\n".encode())
                time.sleep(_RETRY_S)


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
        self._handler: logging.Handler | None = None
        self._writer: _Writer | None = None

    def open(self, file: Path | None) -> None:
        """Tell everything there from now on.

        Raises:
            InvalidOption: the file cannot be written.
        """
        try:
            self._writer = _Writer(file)
        except OSError as error:
            raise InvalidOption(f"the log cannot be written to {file}: {error}") from error
        handler = logging.StreamHandler(self._writer)
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
        """Write formatted lines, after the records that were logged before."""
        if self._writer is not None:
            self._writer.write(text)

    def close(self) -> None:
        """Wait until all is written, but not long where nobody reads it."""
        if self._writer is not None:
            self._writer.wait()

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
