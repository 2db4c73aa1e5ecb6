"""Receives TensorRT's messages in one log per process."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

log = logging.getLogger(__name__)
# Logger for messages while a collector is active. A server with logging shows them. A command
# without logging does not print them, because the caller of `collect` reports them.
collected = logging.getLogger(f"{__name__}.collected")
collected.addHandler(logging.NullHandler())

# TensorRT repeats this message for every failure on a machine without a driver. The message has no
# information.
_NO_DRIVER = "checkMacros.cpp::catchCudaError"
# Position in TensorRT's source, e.g. " In validate at /_src/optimizer/api/network.cpp:4023".
_SOURCE = re.compile(r" In \S+ at /_src/[^\s)]+")
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|insufficient (gpu )?memory|memory is insufficient", re.IGNORECASE
)


class Log:
    """Passes TensorRT's errors and warnings to Python's logging, and to callers of `collect`.

    TensorRT has one logger for all engines and calls it from its own threads. So a caller of
    `collect` may also receive messages about another engine.
    """

    def __init__(self) -> None:
        self._collecting: list[list[str]] = []
        self._lock = Lock()

    def write(self, text: str, level: int = logging.WARNING) -> None:
        """Log a message of TensorRT. `level` is a level of `logging`."""
        with self._lock:
            for messages in self._collecting:
                messages.append(text)
            to = collected if self._collecting else log
        to.log(level, text)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """Yield a list. Messages that arrive during the `with` block are added to it."""
        messages: list[str] = []
        with self._lock:
            self._collecting.append(messages)
        try:
            yield messages
        finally:
            with self._lock:
                # Compare the lists by identity, because another list may have equal messages.
                self._collecting = [one for one in self._collecting if one is not messages]


def logger(trt: Any, to: Log) -> Any:
    """Create TensorRT's `ILogger`. It writes errors and warnings to `to`."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.WARNING:
                level = logging.WARNING if severity == trt.ILogger.WARNING else logging.ERROR
                to.write(message.strip(), level)

    return Logger()


def out_of_memory(text: str) -> bool:
    """Return whether a message of TensorRT reports too little memory."""
    return _OUT_OF_MEMORY.search(text) is not None


def strip_noise(text: str) -> str:
    """Return a message on one line, without source positions and lines about a missing driver."""
    lines = (line.strip() for line in text.splitlines() if _NO_DRIVER not in line)
    return _SOURCE.sub("", " ".join(line for line in lines if line))
