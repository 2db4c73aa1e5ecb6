"""Receives TensorRT's messages in one log per process."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

log = logging.getLogger(__name__)
# Collected messages also go to the log of a server, but not to a terminal without logging.
collected = logging.getLogger(f"{__name__}.collected")
collected.addHandler(logging.NullHandler())

# TensorRT repeats this message for every failure without a driver. It has no information.
_NO_DRIVER = "checkMacros.cpp::catchCudaError"
# Position in TensorRT's source, e.g. " In validate at /_src/optimizer/api/network.cpp:4023".
_SOURCE = re.compile(r" In \S+ at /_src/[^\s)]+")
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|insufficient (gpu )?memory|memory is insufficient", re.IGNORECASE
)


class Log:
    """Passes errors and warnings to Python's logging, and to collectors.

    TensorRT calls it from its own threads. A collector may also receive messages of another engine;
    the log receives all messages.
    """

    def __init__(self) -> None:
        self._collecting: list[list[str]] = []
        self._lock = Lock()

    def write(self, text: str, level: int = logging.WARNING) -> None:
        """Receive a message, with its level from `logging`."""
        with self._lock:
            for messages in self._collecting:
                messages.append(text)
            to = collected if self._collecting else log
        to.log(level, text)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """Collect the messages that arrive during the block into the yielded list."""
        messages: list[str] = []
        with self._lock:
            self._collecting.append(messages)
        try:
            yield messages
        finally:
            with self._lock:
                # Lists are compared by identity, because another list may have equal messages.
                self._collecting = [one for one in self._collecting if one is not messages]


def logger(trt: Any, to: Log) -> Any:
    """Create an `ILogger` that writes errors and warnings to a log."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.WARNING:
                level = logging.WARNING if severity == trt.ILogger.WARNING else logging.ERROR
                to.write(message.strip(), level)

    return Logger()


def out_of_memory(text: str) -> bool:
    """Return True if a message of TensorRT reports too little memory."""
    return _OUT_OF_MEMORY.search(text) is not None


def strip_noise(text: str) -> str:
    """Return a message on one line, without source positions and missing-driver lines."""
    lines = (line.strip() for line in text.splitlines() if _NO_DRIVER not in line)
    return _SOURCE.sub("", " ".join(line for line in lines if line))
