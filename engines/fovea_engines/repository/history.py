"""The history of a model: when which version became current."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import index
from pathlib import Path
from typing import Any, BinaryIO, Self

from fovea_engines.repository.files import writing
from fovea_preprocess.errors import InvalidModel

HISTORY_FILE = "history.jsonl"
"""File in the model's directory with one line of JSON per event. Lines are only appended."""

# Largest number of versions that rollbacks can go back.
_MAX_EARLIER = 1000


@dataclass(frozen=True, slots=True)
class History:
    """The events of a model, and the state that follows from them.

    Attributes:
        events: events, oldest first.
        current: version that answers requests without a version; None means the newest.
        earlier: versions that were current before; a rollback returns to the last of them.
        canary: event of the running canary; None if there is none.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    current: int | None = None
    earlier: tuple[int, ...] = ()
    canary: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the history in a model's directory.

        Raises:
            InvalidModel: the file cannot be read, or a line is not an event.
        """
        path = folder / HISTORY_FILE
        # Reading a named pipe would block forever.
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
            # An incomplete line was never an event: its writer was killed.
            if line.endswith(b"\n"):
                try:
                    events.append(json.loads(line))
                    found = found._apply(events[-1])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise InvalidModel(
                        f"line {number} of {folder.name}/{HISTORY_FILE} is not an event: delete "
                        "the line"
                    ) from None
        return replace(found, events=tuple(events))

    def _apply(self, event: Mapping[str, Any]) -> Self:
        """Return the state after an event.

        Raises:
            KeyError, TypeError, ValueError: it is not a valid event.
        """
        action, version, previous = event["action"], event["version"], event["previous"]
        if (
            min(index(version), index(previous)) < 1
            or not datetime.fromisoformat(event["at"]).tzinfo
        ):
            raise ValueError(event)
        earlier, current, canary = self.earlier, version, None
        if action == "promote" and event.get("built"):
            # The newest version is current until somebody promotes one, so builds do not change
            # `current`.
            if self.current is None:
                earlier = (*earlier, previous)[-_MAX_EARLIER:]
            return replace(self, earlier=earlier)
        match action:
            case "promote" | "canary_passed":
                if previous != version:
                    earlier = (*earlier, previous)[-_MAX_EARLIER:]
            case "rollback":
                # The rollback of a canary only ends the canary.
                earlier = earlier if self.canary else earlier[:-1]
            case "canary":
                current, canary = previous, event
            case "canary_failed":
                current = previous
            case _:
                raise ValueError(action)
        return replace(self, current=current, earlier=earlier, canary=canary)

    def served(self, chosen: Iterable[int], there: Sequence[int]) -> tuple[int, ...]:
        """Return the versions of a policy, plus the current version and the canary.

        Only versions in `there` are returned. They are ascending, except that the current one is
        last.
        """
        ours = () if self.canary is None else (self.canary["version"],)
        wanted = {*chosen, self.current, *ours}
        return tuple(sorted(wanted & set(there), key=lambda each: (each == self.current, each)))


@contextmanager
def open_history(folder: Path) -> Iterator[BinaryIO]:
    """Open and lock the history of a model's directory until the block ends.

    It waits while another process has the lock. A new file that stays empty is removed.

    Raises:
        OSError: the file cannot be opened.
    """
    path = folder / HISTORY_FILE
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous owner of the lock may have removed the file.
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
    """Append an event with the current time, and wait until it is on the disk.

    Args:
        file: file from `open_history`.
        folder: directory of the model.
        event: fields of the event without the time.

    Raises:
        OSError: the event cannot be written; the file is unchanged.
    """
    path = folder / HISTORY_FILE
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"at": at, **event}) + "\n"
    # A writer that was killed may have left a partial line.
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
