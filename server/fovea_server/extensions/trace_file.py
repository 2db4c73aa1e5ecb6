"""The file of traces: a JSON array that is complete after every trace."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson


class TraceFile:
    """Writes traces to one file, or to numbered files of a fixed number of traces.

    Args:
        path: of the file, which is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begun = False
        self._gathered: list[Any] = []
        self._traces = self._written = 0

    def add(self, entries: Sequence[Any], log_frequency: int) -> None:
        """Add a trace.

        Args:
            entries: of the trace, in order.
            log_frequency: number of traces in each numbered file; 0 for one file.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            if not log_frequency:
                self._append(orjson.dumps(list(entries)))
                return
            self._gathered += entries
            self._traces += 1
            if self._traces >= log_frequency:
                file = self.path.with_name(f"{self.path.name}.{self._written}")
                file.write_bytes(orjson.dumps(self._gathered))
                self._gathered, self._traces = [], 0
                self._written += 1

    def _append(self, array: bytes) -> None:
        if not self._begun:
            self.path.write_bytes(array)
            self._begun = True
            return
        with self.path.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"," + array[1:])
