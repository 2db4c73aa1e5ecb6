"""The log of the server: one line per event, on stderr or in a file.

The logging extension can change severities and format while the server runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import get_args

from fovea_preprocess.entry_points import extending_packages
from fovea_preprocess.errors import InvalidOption
from fovea_server.log_lines import LineFormatter, LogFormat

FORMATS: dict[str, LogFormat] = {name: name for name in get_args(LogFormat)}

CONTROL = "fovea_server.control"
"""Logger for changes to the server. Its records are written even if a client has turned off
logging.
"""

_PACKAGES = frozenset(("fovea_preprocess", "fovea_engines", "fovea_server"))
SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)
log = logging.getLogger(__name__)

_STDERR = 2
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
# Time in seconds between two writes. Lines are written in batches, because single writes take
# several times as long.
_INTERVAL_S = 0.05
_RETRY_S = 1.0
# Largest number of bytes that wait to be written. Further lines are dropped, and the log reports
# their number.
_MAX_WAITING = 8 << 20
# Time in seconds for which the exit of the process waits until the log is written.
_PATIENCE_S = 2.0


def _format(lines: Callable[[], str]) -> bytes:
    try:
        return lines().encode(errors="backslashreplace")
    except Exception:  # this thread must survive any error, because no other thread writes the log
        log.exception("a log line could not be formatted")
        return b""


class _Writer:
    """Writes lines in its own thread, so that a slow reader of the log blocks no other thread.

    The thread is a daemon, and writes directly to the file descriptor. It therefore holds no lock
    that the interpreter needs at its exit.
    """

    def __init__(self, file: Path | None) -> None:
        self._descriptor = _STDERR if file is None else os.open(file, _FLAGS, 0o666)
        self._file = file
        self._waiting: list[Callable[[], str]] = []
        self._held = self._dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def reopen(self) -> None:
        """Open the path again. If the file was moved, create a new file.

        Raises:
            OSError: the file cannot be opened.
        """
        if self._file is not None:
            descriptor = os.open(self._file, _FLAGS, 0o666)
            # dup2 replaces the descriptor atomically, so the thread can write at the same time.
            os.dup2(descriptor, self._descriptor, inheritable=False)
            os.close(descriptor)

    def write(self, text: str) -> None:
        """Add formatted lines. `logging.StreamHandler` calls this method."""
        self.add(lambda: text, len(text.encode(errors="backslashreplace")))

    def add(self, lines: Callable[[], str], size: int) -> None:
        """Queue lines that have about `size` bytes. The thread calls `lines`.

        This method does not block.
        """
        with self._changed:
            if self._held + size > _MAX_WAITING:
                self._dropped += 1
                return
            self._held += size
            self._waiting.append(lines)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all lines are written, for at most 2 s."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._held or self._dropped), _PATIENCE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                # At this point, `_held` counts only waiting lines, because the previous batch has
                # been written.
                batch, self._waiting, size = self._waiting, [], self._held
            self._write_out(b"".join(map(_format, batch)))
            with self._changed:
                self._held -= size
                dropped = self._dropped
                self._changed.notify_all()
            if dropped:
                log.warning("%d log lines were dropped, because the disk was too slow", dropped)
                with self._changed:
                    self._dropped -= dropped
                    self._changed.notify_all()
            time.sleep(_INTERVAL_S)

    def _write_out(self, batch: bytes) -> None:
        rest, reported = memoryview(batch), self._file is None
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if not reported:
                    reported = True
                    reason = f"the log cannot be written to {self._file}: {error.strerror}"
                    with suppress(OSError):
                        os.write(
                            _STDERR, f"{reason}; the server tries again every second\n".encode()
                        )
                time.sleep(_RETRY_S)


class ServerLog(logging.Filter):
    """The log of this process.

    Attributes:
        file: path of the log file; None for stderr.
        severities: levels that are logged: a subset of INFO, WARNING and ERROR.
        verbose: verbosity. If it is above 0, DEBUG records are also logged: health probes, metrics
            requests, details.
        format: format of the lines.
        lines: formatter of the lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file: Path | None = None
        self.severities = frozenset(SEVERITIES)
        self.verbose = 0
        self.format: LogFormat = "default"
        self.lines = LineFormatter(lambda: self.format)
        self._handler: logging.Handler | None = None
        self._writer: _Writer | None = None

    def open(self, file: Path | None) -> None:
        """Write to this file from now on. If `file` is None, write to stderr.

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

    def reopen(self) -> None:
        """Open the log file again, after log rotation has moved it."""
        if self._writer is not None:
            try:
                self._writer.reopen()
            except OSError as error:
                log.error("the log file %s cannot be reopened: %s", self.file, error.strerror)

    def set_severities(self, severities: frozenset[int], verbose: int) -> None:
        """Set the levels that are logged. For `verbose` see `ServerLog`."""
        self.severities, self.verbose = severities, verbose
        logging.getLogger().setLevel(min(severities, default=logging.CRITICAL + 1))
        logging.getLogger(CONTROL).setLevel(logging.INFO)
        for package in _PACKAGES | extending_packages():
            logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.NOTSET)

    def add(self, lines: Callable[[], str], size: int) -> None:
        """Queue lines that have about `size` bytes, after all earlier lines.

        The writer's thread calls `lines`.
        """
        if self._writer is not None:
            self._writer.add(lines, size)

    def close(self) -> None:
        """Wait until all lines are written, for at most 2 s."""
        if self._writer is not None:
            self._writer.wait()

    def takes(self, logger: logging.Logger, level: int) -> bool:
        """Return whether a record of this logger would be written. `level` is INFO or DEBUG."""
        return logger.isEnabledFor(level) and (level < logging.INFO or level in self.severities)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the severity of a record is enabled.

        Records of `CONTROL` are always enabled.
        """
        if record.levelno < logging.INFO or record.name == CONTROL:
            return True
        return max(level for level in SEVERITIES if level <= record.levelno) in self.severities


SERVER_LOG = ServerLog()
"""The log of this process. There is only one."""


def set_up_logging(
    level: str,
    *,
    file: Path | None = None,
    verbose: int = 0,
    line_format: LogFormat = "default",
    off: Collection[int] = (),
) -> None:
    """Open the log and choose the severities to write.

    Args:
        level: lowest severity to log: debug, info, warning or error.
        file: path of the log file; None for stderr.
        verbose: verbosity. If it is above 0, DEBUG records are also logged.
        line_format: format of the lines.
        off: severities that are not logged, although `level` includes them.

    Raises:
        InvalidOption: the file cannot be written.
    """
    SERVER_LOG.open(file)
    SERVER_LOG.format = line_format
    least = logging.getLevelNamesMapping()[level.upper()]
    severities = frozenset(severity for severity in SEVERITIES if severity >= least) - {*off}
    SERVER_LOG.set_severities(severities, verbose or int(least < logging.INFO))
    # Suppress the log lines of these libraries for each request, because Fovea logs requests
    # itself.
    for library in ("aiobotocore", "azure", "botocore", "httpx", "httpx2", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)
