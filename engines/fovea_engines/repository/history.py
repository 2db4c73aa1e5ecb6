"""Reads and writes the history of a model: when each version became current."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import index
from pathlib import Path
from typing import Any, BinaryIO, Self

from fovea_engines.repository.files import writing
from fovea_preprocess.errors import InvalidModel

HISTORY_FILE = "history.jsonl"
"""Name of the history file in the model's directory.

It has one line of JSON for each event, and new lines are only appended.
"""

# Largest number of earlier versions that are kept for rollbacks.
_MAX_EARLIER = 1000


@dataclass(frozen=True, slots=True)
class History:
    """The events of a model, and the state that follows from them.

    Attributes:
        events: events, oldest first.
        current: version that the server runs for requests without a version number; None means the
            newest version.
        earlier: versions that were current before, oldest first.
        canary: event that started the running canary; None if no canary is running.
        withdrawn: for each version that was a canary after it was last current, the event that
            ended its last canary.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    current: int | None = None
    earlier: tuple[int, ...] = ()
    canary: Mapping[str, Any] | None = None
    withdrawn: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the history in a model's directory.

        Raises:
            InvalidModel: the file cannot be read, or a line is not an event.
        """
        path = folder / HISTORY_FILE
        # Reject a named pipe, because reading it would block forever.
        if path.exists() and not path.is_file():
            raise InvalidModel(f"{folder.name}/{HISTORY_FILE} is not a file: move it away")
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise InvalidModel(
                f"{folder.name}/{HISTORY_FILE} cannot be read: {error.strerror}"
            ) from error
        found, events = cls(), []
        for number, line in enumerate(lines, 1):
            # Ignore a line without an end: the process that wrote it was killed, so it is not an
            # event.
            if line.endswith(b"\n"):
                try:
                    events.append(json.loads(line))
                    found = found._apply(events[-1])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise InvalidModel(
                        f"line {number} of {folder.name}/{HISTORY_FILE} is not a valid event: "
                        "delete the line"
                    ) from None
        return replace(found, events=tuple(events))

    def _apply(self, event: Mapping[str, Any]) -> Self:
        """Return the state after an event.

        Raises:
            KeyError: a field is missing.
            TypeError: a field has an invalid type.
            ValueError: a field has an invalid value.
        """
        action, version, previous = event["action"], event["version"], event["previous"]
        if (
            min(index(version), index(previous)) < 1
            or not datetime.fromisoformat(event["at"]).tzinfo
        ):
            raise ValueError(event)
        earlier, current, canary = self.earlier, version, None
        if action == "promote" and event.get("built"):
            # A build does not change `current`. While `current` is None, the newest version is
            # current, so a rollback must return to the previous one.
            if self.current is None:
                earlier = (*earlier, previous)[-_MAX_EARLIER:]
            return replace(self, earlier=earlier)
        match action:
            case "promote" | "canary_passed":
                if previous != version:
                    earlier = (*earlier, previous)[-_MAX_EARLIER:]
            case "rollback":
                # During a canary, a rollback only ends the canary.
                earlier = earlier if self.canary else _before_last(earlier, version)
            case "canary":
                current, canary = previous, event
            case "canary_failed":
                current = previous
            case _:
                raise ValueError(action)
        withdrawn = dict(self.withdrawn)
        if self.canary is not None:
            withdrawn[self.canary["version"]] = event
        withdrawn.pop(current, None)
        return replace(self, current=current, earlier=earlier, canary=canary, withdrawn=withdrawn)

    def rollback_target(self, current: int) -> int | None:
        """Return the version that a rollback restores; None if there is none.

        It is the last version that was current before, without versions whose canary was withdrawn.

        Args:
            current: version that is current now; see `served`.
        """
        left_out = {current, *self.withdrawn}
        return next((each for each in reversed(self.earlier) if each not in left_out), None)

    def served(self, chosen: Iterable[int], there: Sequence[int]) -> tuple[int, ...]:
        """Return the versions to serve.

        They are the versions of the version policy, the current version and the canary.

        Args:
            chosen: versions that the version policy selects.
            there: versions that exist on disk.

        Returns:
            The existing versions in ascending order, except that the current version is the last
            one.
        """
        ours = () if self.canary is None else (self.canary["version"],)
        wanted = {*chosen, self.current, *ours}
        return tuple(sorted(wanted & set(there), key=lambda each: (each == self.current, each)))


def _before_last(versions: tuple[int, ...], version: int) -> tuple[int, ...]:
    """Return the versions before the last occurrence of a version, or all but the last one."""
    places = [place for place, each in enumerate(versions) if each == version]
    return versions[: places[-1]] if places else versions[:-1]


@contextmanager
def open_history(folder: Path) -> Iterator[BinaryIO]:
    """Open and lock the history in a model's directory until the `with` block ends.

    The function waits while another process has the lock. If the file is empty after the block, it
    is removed.

    Raises:
        OSError: the file cannot be opened.
    """
    path = folder / HISTORY_FILE
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Try again if the previous owner of the lock has removed the file.
            if os.fstat(file.fileno()).st_nlink:
                try:
                    yield file
                finally:
                    if not os.fstat(file.fileno()).st_size:
                        path.unlink(missing_ok=True)
                return
        finally:
            file.close()


def append_event(file: BinaryIO, folder: Path, event: Mapping[str, Any]) -> None:
    """Append an event with the current time to a history, and wait until it is stored on the disk.

    Args:
        file: file from `open_history`.
        folder: directory of the model.
        event: fields of the event without the time.

    Raises:
        OSError: the event cannot be written. The file is unchanged.
    """
    path = folder / HISTORY_FILE
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"at": at, **event}) + "\n"
    # Remove a partial line at the end, which a killed process may have left.
    whole = path.read_bytes().rfind(b"\n") + 1
    file.truncate(whole)
    file.seek(whole)
    try:
        with writing(path, len(line)):
            file.write(line.encode())
            os.fsync(file.fileno())
    except OSError:
        file.truncate(whole)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
