"""Writes the history of a model under a lock.

With the lock, no other process can change the history between a decision and its entry.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, ValidationError

from fovea_engines.repository.history import HISTORY_FILE, append_event, open_history
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidRequest, NotFound, Unavailable
from fovea_server.rollout.promotion_documents import CanaryPlan, Event, Promotion, Rollback

_FILE = ".canary.json"

_Count = Annotated[int, Field(ge=0)]

_LONGEST = 1000


class CanaryCounts(BaseModel):
    """Numbers of requests that a canary and the current version have answered and failed."""

    version: int
    at: str = Field(description="time when the canary began, from the history of versions")
    answered: _Count
    failed: _Count
    current_answered: _Count
    current_failed: _Count


def read_counts(folder: Path, event: Event) -> CanaryCounts | None:
    """Read the stored counts of a canary; None if no counts are stored.

    `event` is the event of the history that began the canary.
    """
    try:
        found = CanaryCounts.model_validate_json((folder / _FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if (found.version, found.at) == (event["version"], event["at"]) else None


def write_counts(folder: Path, counts: CanaryCounts) -> None:
    """Write counts atomically.

    Raises:
        OSError: the directory is not writable.
    """
    path = folder / _FILE
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(counts.model_dump_json())
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def drop_counts(folder: Path) -> None:
    """Remove the stored counts of a canary that is over."""
    with suppress(OSError):
        (folder / _FILE).unlink(missing_ok=True)


class HistoryRecord:
    """The history of a model, locked for writing until the object is closed.

    Raises:
        Unavailable: the file cannot be written; the message has a remedy.
        InvalidModel: the history is damaged, or is not a regular file.

    Attributes:
        history: the history at the time when the lock was acquired.
    """

    def __init__(self, models: ModelRepository, name: str) -> None:
        self._models, self._name = models, name
        self._path = models.root / name / HISTORY_FILE
        # Read the history before opening the file to write: reading rejects special files, such as
        # pipes, and opening a pipe may block for ever.
        models.history(name)
        self._stack = ExitStack()
        try:
            self._file = self._stack.enter_context(open_history(self._path.parent))
        except OSError as error:
            raise Unavailable(
                f"{self._name}/{HISTORY_FILE} cannot be written ({error.strerror}): make the "
                "repository writable for this user, or run `fovea promote MODEL VERSION "
                "--repository DIR` on a machine that can write to it. Servers then apply the "
                "change"
            ) from error
        try:
            self.history = models.history(name)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def current(self) -> int:
        """The version for requests without a version number.

        Raises:
            FoveaError: one of the errors of `ModelRepository.served`.
        """
        return self._models.served(self._name)[-1]

    def event_of(self, given: Rollback) -> Event | None:
        """Make the event for a promotion or rollback.

        Return None if the version is current already.

        Raises:
            NotFound: the version does not exist, or the previous version is gone.
            InvalidRequest: a canary runs already, the version for a canary is the current version,
                or no earlier version is left for a rollback.
            InvalidOption: the request has limits for a canary, but no fraction of requests
                (`share`).
        """
        if isinstance(given, Promotion):
            return self._promotion(given.version, given.plan())
        return self._rollback()

    def _promotion(self, version: int, plan: CanaryPlan | None) -> Event | None:
        self._check(version)
        current, running = self.current, self.history.canary
        if plan is None:
            if version == self.history.current and running is None:
                return None
            return {"action": "promote", "version": version, "previous": current}
        if version == current:
            raise InvalidRequest(
                f"version {version} of {self._name} is current and cannot be a canary"
            )
        if running is not None:
            raise InvalidRequest(
                f"version {running['version']} of {self._name} is a canary already: `fovea "
                f"rollback {self._name}` ends it"
            )
        limits = plan.model_dump(exclude_none=True)
        return {"action": "canary", "version": version, "previous": current, **limits}

    def _rollback(self) -> Event:
        history = self.history
        if (canary := history.canary) is not None:
            # Ending a canary does not change the current version.
            return {"action": "rollback", "version": self.current, "previous": canary["version"]}
        current = self.current
        if (version := history.rollback_target(current)) is None:
            raise self._no_rollback(current)
        self._check(version)
        return {"action": "rollback", "version": version, "previous": current}

    def _no_rollback(self, current: int) -> InvalidRequest:
        history = self.history
        rejected = [one for one in history.earlier if one in history.withdrawn and one != current]
        if not rejected:
            return InvalidRequest(
                f"no earlier version of {self._name} was current: choose a version with `fovea "
                f"promote {self._name} VERSION`"
            )
        version = rejected[-1]
        event = history.withdrawn[version]
        ended = "failed" if event["action"] == "canary_failed" else "was ended"
        at = datetime.fromisoformat(event["at"]).astimezone(UTC)
        return InvalidRequest(
            f"version {version} was current before, but its canary {ended} at "
            f"{at:%Y-%m-%d %H:%M:%S} UTC: run `fovea promote {self._name} {version}` to make it "
            "current all the same"
        )

    def _check(self, version: int) -> None:
        if version not in (there := self._models.versions(self._name)):
            known = ", ".join(map(str, there)) or "none (of a pipeline, promote its models)"
            raise NotFound(
                f"model '{self._name}' has no version {version}; existing versions: {known}"
            )

    def append(self, event: Event, who: str, why: str) -> None:
        """Append an event, and wait until it is on disk.

        Raises:
            Unavailable: the event cannot be written.
        """
        # Control characters could manipulate the terminal of a user who lists the history.
        who, why = ("".join(c if c.isprintable() else " " for c in text) for text in (who, why))
        given = {"who": who, **event, "why": why[:_LONGEST]}
        try:
            append_event(self._file, self._path.parent, given)
        except OSError as error:
            raise Unavailable(
                f"{self._name}/{HISTORY_FILE} could not be changed: {error.strerror}"
            ) from error
