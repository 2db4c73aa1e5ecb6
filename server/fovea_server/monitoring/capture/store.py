"""The folder of captures: each is a folder of its own, and the oldest make room for new ones.

    DIR/MODEL/DAY/TIME-SERVER-NUMBER-BYTES/    image.jpg  predictions.json

A capture is written beside its place and renamed, so that one that is there is whole, however its
server ended. Its name has its size, so that a look at all of them opens none.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from fovea_preprocess.errors import NotFound

_ABOUT = "predictions.json"
_WRITING = ".writing-"
DAMAGED = "damaged"
_DAMAGED = {"version": "-", "task": DAMAGED, "rule": DAMAGED, "request_id": ""}
_NAME = re.compile(r"(?P<time>\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{8}-\d+-(?P<bytes>\d+)")
_TIME = "%Y%m%dT%H%M%S.%f"
# What a server that was killed has left of a capture.
_ABANDONED_S = 600
# Servers in one folder see what the others wrote once each has written this share of the bound.
_LOOK_AGAIN = 1 / 400


@dataclass(frozen=True, slots=True)
class Captured:
    """A capture: its folder, when it was taken, and the bytes of its files."""

    folder: Path
    taken: datetime
    size: int

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return self.folder.parent.parent.name

    def about(self) -> dict[str, Any]:
        """Read what is known of it: model, version, rule, request id, and the result.

        Of one that is damaged, as disks leave it that lose power, little is known.
        """
        try:
            about: dict[str, Any] = json.loads((self.folder / _ABOUT).read_bytes())["info"]
            return about if isinstance(about, dict) else dict(_DAMAGED)
        except (ValueError, LookupError, TypeError):
            return dict(_DAMAGED)

    def image(self) -> Path:
        """Return the file of the image."""
        return next(self.folder.glob("image.*"))

    def remove(self) -> None:
        """Delete it; another server may do the same."""
        shutil.rmtree(self.folder, ignore_errors=True)


class CaptureStore:
    """Writes captures, within a bound of bytes and of age.

    Args:
        folder: of all models; it is made with the first capture.
        most_bytes: of all files of captures together.
        days: after which a capture is deleted.
    """

    def __init__(self, folder: Path, most_bytes: int, days: float) -> None:
        self.folder, self._most, self._days = folder, most_bytes, days
        self._server = secrets.token_hex(4)
        self._numbers = count(1)
        self._kept: list[Captured] = []
        self.bytes = 0
        self._until_look = 0

    def add(self, model: str, write: Callable[[Path], None]) -> None:
        """Add a capture, whose files `write` puts into a folder; raises what it raises, or OSError.

        OSError: the disk does not take it, or it is larger than all may be together.
        """
        beside = self.folder / f"{_WRITING}{self._server}"
        beside.mkdir(parents=True, exist_ok=True)
        # What clients have sent is not for other users of the machine.
        beside.chmod(0o700)
        try:
            write(beside)
            for file in beside.iterdir():
                file.chmod(0o600)
            size = sum(each.stat().st_size for each in beside.iterdir())
            if size > self._most:
                raise OSError(f"a capture of {size} bytes is more than all may have together")
            self._make_room(size)
            taken = datetime.now(UTC)
            name = f"{taken.strftime(_TIME)}Z-{self._server}-{next(self._numbers)}-{size}"
            place = self.folder / model / taken.strftime("%Y-%m-%d") / name
            place.parent.mkdir(parents=True, exist_ok=True)
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._kept.append(Captured(place, taken, size))
        self.bytes += size
        self._until_look -= size

    def look(self) -> None:
        """See which captures are there, also those of other servers; OSError if it cannot.

        So it is where the folder cannot be written to.
        """
        there = next(each for each in (self.folder, *self.folder.parents) if each.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise OSError(f"{there} is no folder that this user may write to")
        self._kept = sorted(captures(self.folder), key=lambda each: each.folder.name)
        self.bytes = sum(each.size for each in self._kept)
        self._until_look = int(self._most * _LOOK_AGAIN)

    def _make_room(self, size: int) -> None:
        """Delete the oldest until one more of this size fits, and those that are too old."""
        if self._until_look <= 0:
            self.look()
            _sweep(self.folder, self._server)
        oldest = datetime.now(UTC) - timedelta(days=self._days)
        leaving = 0
        for each in self._kept:
            if each.taken >= oldest and self.bytes + size <= self._most:
                break
            each.remove()
            self.bytes -= each.size
            leaving += 1
        del self._kept[:leaving]


def captures(folder: Path, model: str | None = None) -> Iterator[Captured]:
    """Find the captures in a folder, in no order; NotFound if there is no such folder of a model.

    A folder that is not there yet has none.
    """
    models = _folders(folder)
    chosen = [each for each in models if model is None or each.name == model]
    if model is not None and not chosen:
        have = ", ".join(sorted(each.name for each in models)) or "none"
        raise NotFound(f"no captures of a model '{model}' in {folder}; models there: {have}")
    for of_model in chosen:
        for day in _folders(of_model):
            for each in _folders(day):
                if found := _NAME.fullmatch(each.name):
                    with suppress(ValueError):  # no date
                        taken = datetime.strptime(found["time"], _TIME).replace(tzinfo=UTC)
                        yield Captured(each, taken, int(found["bytes"]))


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                Path(each) for each in entries if each.is_dir() and not each.name.startswith(".")
            ]
    except FileNotFoundError:
        return []


def _sweep(folder: Path, own: str) -> None:
    """Delete what killed servers began to write, and days without captures."""
    for beside in folder.glob(f"{_WRITING}*"):
        if beside.name != f"{_WRITING}{own}" and _age_s(beside) > _ABANDONED_S:
            shutil.rmtree(beside, ignore_errors=True)
    for model in _folders(folder):
        for day in _folders(model):
            if day.name != datetime.now(UTC).strftime("%Y-%m-%d"):
                try:
                    day.rmdir()
                except OSError:
                    continue


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
