"""What TensorRT says while it works: one log for the life of a process."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

log = logging.getLogger(__name__)
# What somebody collects is told to a server's log as well, but not to a terminal without one.
collected = logging.getLogger(f"{__name__}.collected")
collected.addHandler(logging.NullHandler())

# Said of every failure again where there is no driver, and tells nothing of it.
_NO_DRIVER = "checkMacros.cpp::catchCudaError"
# As in " In validate at /_src/optimizer/api/network.cpp:4023".
_SOURCE = re.compile(r" In \S+ at /_src/[^\s)]+")


class Log:
    """Errors and warnings: they go where Python's logging goes, and to whoever collects them.

    TensorRT writes to it from threads of its own. Who collects may hear of another engine's
    troubles; who serves always finds his own in the log.
    """

    def __init__(self) -> None:
        self._collecting: list[list[str]] = []
        self._lock = Lock()

    def write(self, text: str, level: int = logging.WARNING) -> None:
        """Take a message, with its level as `logging` has it."""
        with self._lock:
            for messages in self._collecting:
                messages.append(text)
            to = collected if self._collecting else log
        to.log(level, text)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """Take what is said during a block into the list that is given."""
        messages: list[str] = []
        with self._lock:
            self._collecting.append(messages)
        try:
            yield messages
        finally:
            with self._lock:
                # By identity: another list may hold the same messages.
                self._collecting = [one for one in self._collecting if one is not messages]


def logger(trt: Any, to: Log) -> Any:
    """An `ILogger` that writes errors and warnings to a log."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.WARNING:
                level = logging.WARNING if severity == trt.ILogger.WARNING else logging.ERROR
                to.write(message.strip(), level)

    return Logger()


def without_noise(text: str) -> str:
    """A message of TensorRT on one line, without its source files and the missing driver."""
    lines = (line.strip() for line in text.splitlines() if _NO_DRIVER not in line)
    return _SOURCE.sub("", " ".join(line for line in lines if line))
