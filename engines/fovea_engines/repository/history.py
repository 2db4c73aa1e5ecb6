"""The history of a model: which of its versions were made current, in the order of time."""

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
"""In the model's folder: a line of JSON for each event, and lines are only added."""

# So many rollbacks lead back.
_MAX_EARLIER = 1000


@dataclass(frozen=True, slots=True)
class History:
    """The events of a model, and what follows from them.

    Attributes:
        events: the oldest first.
        current: the version that answers requests which name none; None: the newest.
        earlier: those before it; a rollback goes to the last.
        canary: the event of the canary that runs; None without one.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    current: int | None = None
    earlier: tuple[int, ...] = ()
    canary: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of a model's folder; InvalidModel names a line that is no event."""
        path = folder / HISTORY_FILE
        # A pipe would never end.
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
            # A line without an end was never written to it: its writer was killed.
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
        """Return what follows from an event; KeyError, TypeError or ValueError where it is none."""
        action, version, previous = event["action"], event["version"], event["previous"]
        if (
            min(index(version), index(previous)) < 1
            or not datetime.fromisoformat(event["at"]).tzinfo
        ):
            raise ValueError(event)
        earlier, current, canary = self.earlier, version, None
        if action == "promote" and event.get("built"):
            # The newest version answers until somebody promotes one, whatever is built.
            if self.current is None:
                earlier = (*earlier, previous)[-_MAX_EARLIER:]
            return replace(self, earlier=earlier)
        match action:
            case "promote" | "canary_passed":
                if previous != version:
                    earlier = (*earlier, previous)[-_MAX_EARLIER:]
            case "rollback":
                # That of a canary ends it, and no more.
                earlier = earlier if self.canary else earlier[:-1]
            case "canary":
                current, canary = previous, event
            case "canary_failed":
                current = previous
            case _:
                raise ValueError(action)
        return replace(self, current=current, earlier=earlier, canary=canary)

    def served(self, chosen: Iterable[int], there: Sequence[int]) -> tuple[int, ...]:
        """Add the current version and the canary to those that a policy has chosen.

        Only versions that are `there`; ascending, but the current one last.
        """
        ours = () if self.canary is None else (self.canary["version"],)
        wanted = {*chosen, self.current, *ours}
        return tuple(sorted(wanted & set(there), key=lambda each: (each == self.current, each)))


@contextmanager
def open_history(folder: Path) -> Iterator[BinaryIO]:
    """Open the history of a model's folder, which nobody else writes until the block ends.

    It may wait for that. A new file that stays empty is removed. Raises OSError.
    """
    path = folder / HISTORY_FILE
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The last owner of the lock may have removed the file.
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
    """Write an event with its time, and wait until the disk has it.

    Args:
        file: of `open_history`.
        folder: of the model.
        event: the rest of it.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    path = folder / HISTORY_FILE
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"at": at, **event}) + "\n"
    # A writer that was killed may have left a part of a line.
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
