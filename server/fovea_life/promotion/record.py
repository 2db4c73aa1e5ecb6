"""Writes the history of a model: what is decided by it is still so when it is written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO, Self

from fovea_engines.repository.files import writing
from fovea_engines.repository.repository import ModelRepository
from fovea_life.promotion.plan import CanaryPlan
from fovea_preprocess.errors import InvalidRequest, NotFound, Unavailable

FILE = "history.jsonl"
_LONGEST = 1000

Event = Mapping[str, Any]


class HistoryRecord:
    """The history of a model, which nobody else writes until this is closed; it may wait for that.

    Raises:
        Unavailable: the file cannot be written; the message says what to do.
        InvalidModel: it is damaged.

    Attributes:
        history: as it was when this was made.
    """

    def __init__(self, models: ModelRepository, name: str) -> None:
        self._models, self._name = models, name
        self._path = models.root / name / FILE
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._file: BinaryIO = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as error:
            raise Unavailable(
                f"{self._name}/{FILE} cannot be written ({error.strerror}): make the repository "
                "writable for this user, or promote where it is: `fovea promote MODEL VERSION "
                "--repository DIR`; the servers of the repository follow that file"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.history = models.history(name)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def current(self) -> int:
        """The version that answers requests which name none; raises as `ModelRepository.served`."""
        return self._models.served(self._name)[-1]

    def promotion(self, version: int, plan: CanaryPlan | None) -> Event | None:
        """Make the event that promotes a version, or runs it as a canary; None if it is current.

        Raises:
            NotFound: there is no such version.
            InvalidRequest: there is a canary already, or it would be the current version.
        """
        self._check(version)
        current, running = self.current, self.history.canary
        if plan is None:
            if version == self.history.current and running is None:
                return None
            return {"action": "promote", "version": version, "previous": current}
        if version == current:
            raise InvalidRequest(f"version {version} of {self._name} is current: it is no canary")
        if running is not None:
            raise InvalidRequest(
                f"version {running['version']} of {self._name} is a canary already: `fovea "
                f"rollback {self._name}` ends it"
            )
        limits = {name: each for name, each in asdict(plan).items() if each is not None}
        return {"action": "canary", "version": version, "previous": current, **limits}

    def rollback(self) -> Event:
        """Make the event that ends the canary, or makes the version before current again.

        Raises:
            InvalidRequest: nothing was promoted.
            NotFound: the version before is gone.
        """
        history = self.history
        if (canary := history.canary) is not None:
            # The version that answers did so before, too.
            return {"action": "rollback", "version": self.current, "previous": canary["version"]}
        if not history.earlier:
            raise InvalidRequest(
                f"no other version of {self._name} was current before, so there is none to go "
                "back to: `fovea "
                f"promote {self._name} VERSION` makes any of them current"
            )
        self._check(history.earlier[-1])
        return {"action": "rollback", "version": history.earlier[-1], "previous": self.current}

    def _check(self, version: int) -> None:
        if version not in (there := self._models.versions(self._name)):
            known = ", ".join(map(str, there)) or "none; of a pipeline, promote its models"
            raise NotFound(f"{self._name} has no version {version}; versions there: {known}")

    def append(self, event: Event, who: str, why: str) -> None:
        """Write an event, and wait until the disk has it; Unavailable names what it lacks."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "who": who, **event, "why": why[:_LONGEST]}) + "\n"
        # A writer that was killed may have left a part of a line.
        whole = self._path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(whole)
        self._file.seek(whole)
        try:
            with writing(self._path, len(line)):
                self._file.write(line.encode())
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(whole)
            raise Unavailable(f"{self._name}/{FILE} is as it was: {error.strerror}") from error
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
