"""The numbered events of one stream, in a directory of limited size."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from fovea_preprocess.text import counted

log = logging.getLogger(__name__)

MAX_HELD = 4096
"""Largest number of events in memory while the disk is full."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with its number. `text` is the event as JSON without a line end."""

    number: int
    text: bytes


class EventLog:
    """Stores the newest events in two files of JSON lines. Use it on the event loop only.

    A reader stores only the number of its last event, so slow or stopped readers need no memory.
    The first number of a new log comes from the clock, so numbers do not repeat after the directory
    was removed. If the disk is full, the newest events stay in memory and are written later.

    Args:
        folder: directory of the files.
        most_bytes: size of a file in bytes. If a file reaches it, the next file begins, and all
            files but the last two are removed.

    Attributes:
        closed: True after `close`.
        fault: reason why events cannot be written; "" if there is no problem.
        lost: number of events that were lost, because memory was full or they could not be written
            before `close`.
    """

    def __init__(self, folder: Path, most_bytes: int = 4 << 20) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self._folder, self._most_bytes = folder, most_bytes
        self._files = [_EventFile(path) for path in sorted(folder.glob("events-[0-9]*.jsonl"))]
        self._held: deque[LoggedEvent] = deque()
        """Events that are not written yet, in order. Events in the files are older than these."""
        self._more = asyncio.Event()
        self.closed = False
        self.fault, self.lost = "", 0
        if not self._files:
            self._begin(1000 * int(time.time()))

    @property
    def last(self) -> int:
        """Return the number of the newest event."""
        return self._held[-1].number if self._held else self._files[-1].end - 1

    @property
    def held(self) -> int:
        """Return the number of events that are only in memory."""
        return len(self._held)

    @property
    def first(self) -> int:
        """Return the number of the oldest stored event."""
        return self._files[0].first

    def append(self, event: Mapping[str, Any]) -> LoggedEvent:
        """Store an event with the next number, and return it."""
        number = self.last + 1
        one = LoggedEvent(number, orjson.dumps({"event": number, **event}))
        self._held.append(one)
        self.write()
        if len(self._held) > MAX_HELD:
            self._held.popleft()
            self.lost += 1
        self.wake()
        return one

    def write(self) -> None:
        """Write the events in memory to the files, until all are written or the disk is full."""
        try:
            while self._held:
                one, file = self._held[0], self._files[-1]
                if file.size >= self._most_bytes or one.number != file.end:
                    file = self._begin(one.number)
                file.append(one.text)
                self._held.popleft()
        except OSError as error:
            fault = error.strerror or str(error)
            if not self.fault:
                log.error("events cannot be written to %s: %s", self._folder, fault)
            self.fault = fault
            return
        if self.fault:
            log.warning("events are written to %s again", self._folder)
        self.fault = ""

    def wake(self) -> None:
        """Wake all readers that wait, even if there is no new event."""
        self._more.set()
        self._more = asyncio.Event()

    def read(self, after: int, most: int = 64) -> list[LoggedEvent]:
        """Return up to `most` events with numbers above `after`."""
        for file in self._files:
            if file.count and after + 1 < file.end:
                start = max(after + 1, file.first)
                lines = file.read(start - file.first, most)
                return [LoggedEvent(number, text) for number, text in enumerate(lines, start)]
        return list(islice((one for one in self._held if one.number > after), most))

    async def wait(self, after: int, limit_s: float) -> list[LoggedEvent]:
        """Wait for events, and return them like `read`.

        Return an empty list if there is no event within `limit_s` seconds, or if `wake` is called
        before an event. This method always yields to the event loop, so that a reader with many
        events does not block it.
        """
        await asyncio.sleep(0)
        events = [] if self.closed else self.read(after)
        if events or self.closed:
            return events
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._more.wait()
        return [] if self.closed else self.read(after)

    def close(self) -> None:
        """Close the files, and wake all readers that wait. A second call does nothing."""
        if self.closed:
            return
        self.write()
        self.lost += len(self._held)
        if self._held:
            log.error(
                "%s could not be written and are lost: %s",
                counted(len(self._held), "event"),
                self.fault,
            )
        self.closed = True
        self._more.set()
        for file in self._files:
            os.close(file.handle)

    def _begin(self, first: int) -> _EventFile:
        self._files.append(_EventFile(self._folder / f"events-{first}.jsonl"))
        for old in self._files[:-2]:
            os.close(old.handle)
            old.path.unlink(missing_ok=True)
        self._files = self._files[-2:]
        return self._files[-1]


class _EventFile:
    """A file of lines. The offset of each line is in memory."""

    def __init__(self, path: Path) -> None:
        self.path, self.first = path, int(path.stem.partition("-")[2])
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        lines = os.pread(self.handle, os.fstat(self.handle).st_size, 0).split(b"\n")
        self._starts = array("Q", [0])
        for line in lines[:-1]:
            self._starts.append(self.size + len(line) + 1)
        # Remove an incomplete last line. It remains if the machine stopped while the line was
        # written.
        os.ftruncate(self.handle, self.size)

    @property
    def count(self) -> int:
        return len(self._starts) - 1

    @property
    def end(self) -> int:
        """Return the number after the last event in this file."""
        return self.first + self.count

    @property
    def size(self) -> int:
        return self._starts[-1]

    def append(self, line: bytes) -> None:
        size = self.size
        if os.write(self.handle, line + b"\n") <= len(line):
            os.ftruncate(self.handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._starts.append(size + len(line) + 1)

    def read(self, index: int, most: int) -> list[bytes]:
        start, end = self._starts[index], self._starts[min(index + most, self.count)]
        return os.pread(self.handle, end - start, start).split(b"\n")[:-1]
