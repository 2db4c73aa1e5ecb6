"""Manages a model repository on disk in Triton's layout: NAME/VERSION/, with config.pbtxt."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.files import swap, write_file
from fovea_engines.repository.history import HISTORY_FILE, History
from fovea_engines.repository.locking import lock, locked, temporary_folder
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound

DEFAULT_REPOSITORY = Path("repository")
"""Default repository of commands."""
FAILED_FOLDER = "failed-build"
"""Folder of a model that holds the report of its last refused build; it is no version."""
REPORT_FILE = "card.md"
"""The report of a build, in the folder of the version."""

Standing = Literal["current", "served", "not served"]
"""A server loads a "served" version. The "current" one answers requests that name no version."""

_LISTED = 10
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_MODELS = ("model.onnx", "model.xml", "model.plan", "model.engine")
# Triton's rule: only whole numbers without leading zeros are versions.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def check_name(name: str) -> str:
    """Return `name` if it can name a model: not hidden, and not leading out of the repository."""
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"{name!r} cannot name a model: use letters, digits, '_', '-' and '.', "
            "not '.' first, at most 128 of them"
        )
    return name


@dataclass(frozen=True, slots=True)
class ModelRepository:
    """Models and their versions under one folder.

    Readers only see complete versions: a version appears, or is replaced, by one rename.
    """

    root: Path

    def folders(self) -> tuple[str, ...]:
        """Return the names of the folders that may hold a model, sorted."""
        if not self.root.is_dir():
            advice = "make one with `fovea build`"
            if self.root.suffix == ".onnx" and self.root.is_file():
                advice = f"`fovea build {self.root}` makes an engine in one, which can be served"
            raise NotFound(f"{self.root} is not a folder: {advice}")
        found = (p for p in self.root.iterdir() if _NAME.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(path.name for path in found))

    def misnamed(self) -> tuple[str, ...]:
        """Return the names of folders with a model in them that cannot name it, sorted."""
        found = (p for p in self.root.iterdir() if not _NAME.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(p.name for p in found if p.name[0] != "." and _holds_model(p)))

    def models(self) -> tuple[str, ...]:
        """Return the names of the models with at least one version, sorted.

        Folders that cannot be read are left out: see `unreadable`.
        """
        denied = self.unreadable()
        return tuple(name for name in self.folders() if name not in denied and self.versions(name))

    def unreadable(self) -> tuple[str, ...]:
        """Return the names of the folders that this user may not read, sorted."""

        def is_denied(name: str) -> bool:
            try:
                self.versions(name)
            except PermissionError:
                return True
            return False

        return tuple(filter(is_denied, self.folders()))

    def versionless(self) -> tuple[str, ...]:
        """Return the names of folders with a model in them, but in no version's folder, sorted.

        A version of a model whose folder was taken for a repository is none of them.
        """
        return tuple(
            name
            for name in self.folders()
            if not _VERSION.fullmatch(name)
            and _holds_model(self.root / name)
            and not self.versions(name)
        )

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions of a model, ascending; empty when the model does not exist."""
        folder = self.root / check_name(name)
        if not folder.is_dir():
            return ()
        found = (p for p in folder.iterdir() if _VERSION.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(int(p.name) for p in found))

    def latest(self, name: str) -> int:
        """Return the highest version of a model; `NotFound` if it does not exist."""
        versions = self.versions(name)
        if not versions:
            raise NotFound(f"no model {name!r} in {self.root}")
        return versions[-1]

    def served(self, name: str) -> tuple[int, ...]:
        """Return the versions that a server loads: config.pbtxt decides, and the history.

        The last of them answers requests that name none; the others are ascending. InvalidModel: a
        file is damaged, or config.pbtxt names no version that is there.
        """
        config, there = read_config(self.root / check_name(name) / CONFIG_FILE), self.versions(name)
        chosen = replace(config, name=name).served(there)
        history = self.history(name)
        return history.served(chosen, there) if history.events else chosen

    def served_or_none(self, name: str) -> tuple[int, ...]:
        """Return the versions that are served; none where config.pbtxt is wrong."""
        with suppress(InvalidModel, InvalidOption):
            return self.served(name)
        return ()

    def standing(self, name: str, version: int) -> Standing:
        """Return whether a version answers requests that name none, or is loaded at all."""
        served = self.served_or_none(name)
        if version in served[-1:]:
            return "current"
        return "served" if version in served else "not served"

    def history(self, name: str) -> History:
        """Read the history of a model, empty if none was promoted; raises as `History.read`."""
        folder = self.root / check_name(name)
        return History.read(folder) if (folder / HISTORY_FILE).exists() else History()

    def folder(self, name: str, version: int | None = None) -> Path:
        """Return the folder of a version, by default the latest; `NotFound` lists its versions."""
        latest = self.latest(name)
        if version is not None and version not in self.versions(name):
            known = ", ".join(map(str, self.versions(name)))
            raise NotFound(
                f"no version {version} of model {name!r} in {self.root}; versions there: {known}"
            )
        return self.root / name / str(version or latest)

    def path_of(self, model: str) -> Path:
        """Return the folder of the named model; without one, `model` as a path."""
        own = self.root / model
        if _NAME.fullmatch(model) and own.is_dir():
            return own
        if not Path(model).exists():
            raise NotFound(
                f"there is no model {model!r} in {self.root}, and no file or folder {model}"
                f"{self._advice(model)}"
            )
        return Path(model)

    def _advice(self, model: str) -> str:
        known = self.folders() if self.root.is_dir() else ()
        if close := get_close_matches(model, known, 1):
            return f"; did you mean {close[0]}?"
        if not known:
            return ": `fovea build MODEL.onnx` makes one, --repository names another folder"
        more = ", ..." if len(known) > _LISTED else ""
        return f"; its models are {', '.join(known[:_LISTED])}{more}"

    def next_version(self, name: str) -> int:
        """Return the version that the next build of `name` gets."""
        return max(self.versions(name), default=0) + 1

    def find(self, name: str, content_key: str) -> int | None:
        """Return the newest version of `name` with this content key; None without one."""
        for version in reversed(self.versions(name)):
            try:
                card = EngineCard.read(self.folder(name, version) / CARD_FILE)
            except (NotFound, InvalidModel):
                continue
            if card.content_key == content_key:
                return version
        return None

    @contextmanager
    def publish(self, name: str) -> Iterator[Path]:
        """Publish a new version atomically: the caller fills the folder that is yielded.

        It is hidden and empty. When the block ends without an error, it becomes
        ``NAME/<next version>``, unless a version with its card's content key has appeared
        meanwhile: then, and when the block raises, it is removed. The next build removes leftovers
        of a killed one.
        """
        check_name(name)
        self.root.mkdir(parents=True, exist_ok=True)
        with self._staging(name) as staging:
            yield staging
            _finish(staging)
            with locked(self.root):
                if not self._is_there_already(name, staging):
                    model = self.root / name
                    model.mkdir(exist_ok=True)
                    staging.rename(model / str(self.next_version(name)))
                    _sync(model)
                    _sync(self.root)

    @contextmanager
    def preview(
        self, name: str, staging: Path, texts: Mapping[str, str]
    ) -> Iterator[tuple[Path, int]]:
        """Yield a temporary folder of a model as it will be with one more version, and its number.

        Args:
            name: of the model.
            staging: holds the files of the version.
            texts: the files that will be written beside the versions.
        """
        number, model = self.next_version(name), self.root / name
        with temporary_folder("preview") as folder:
            (preview := folder / name).mkdir()
            for entry in model.iterdir() if model.is_dir() else ():
                if entry.name not in texts:
                    (preview / entry.name).symlink_to(entry.absolute())
            for file, text in texts.items():
                (preview / file).write_text(text, "utf-8")
            (preview / str(number)).symlink_to(staging.absolute())
            yield preview, number

    @contextmanager
    def replace(self, name: str, version: int) -> Iterator[Path]:
        """Replace a version in one step: the caller fills the folder, as in `publish`.

        Raises:
            NotFound: the version does not exist.
            OSError: the repository cannot be written, or its file system cannot exchange folders.
        """
        folder = self.folder(name, version)
        with self._staging(name) as staging:
            yield staging
            _finish(staging)
            with locked(self.root):
                swap(staging, folder)
                _sync(folder.parent)
                _sync(self.root)

    def remove(self, name: str, version: int) -> None:
        """Remove a version: it goes in one step. The next build removes what a kill has left.

        Raises:
            NotFound: the version does not exist.
            InvalidOption: it is served.
        """
        with self._staging(name) as staging, locked(self.root):
            folder = self.folder(name, version)
            if version in self.served(name):
                raise InvalidOption(f"version {version} of {name} is served: it stays")
            folder.rename(staging / folder.name)
            _sync(folder.parent)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the model's lock, across threads and processes."""
        with locked(self.root / check_name(name)):
            yield

    def write_beside(self, name: str, file: str, text: str) -> None:
        """Write a file of the model outside its versions atomically."""
        model = self.root / check_name(name)
        # The name is constant, so the next build overwrites the leftover of a killed one.
        new = model / f".{file}.new"
        with locked(self.root):
            try:
                write_file(new, text.encode())
                new.chmod(0o644)  # regardless of the umask, because another user's server reads it
                _sync(new)
                new.replace(model / file)
            finally:
                new.unlink(missing_ok=True)
        _sync(model)

    def remove_folder(self, name: str, folder: str) -> None:
        """Remove a folder of a model that is no version; nothing when it does not exist."""
        shutil.rmtree(self.root / check_name(name) / folder, ignore_errors=True)

    def empty_folder(self, name: str, folder: str) -> Path:
        """Create an empty folder of a model that is no version, replacing an existing one."""
        self.remove_folder(name, folder)
        path = self.root / name / folder
        path.mkdir(parents=True)
        return path

    def _is_there_already(self, name: str, staging: Path) -> bool:
        try:
            card = EngineCard.read(staging / CARD_FILE)
        except NotFound:
            return False
        return self.find(name, card.content_key) is not None

    @contextmanager
    def _staging(self, name: str) -> Iterator[Path]:
        with locked(self.root):
            self._remove_abandoned()
            staging = Path(tempfile.mkdtemp(prefix=f".{name}.staging-", dir=self.root))
            owner = lock(staging)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            os.close(owner)

    def _remove_abandoned(self) -> None:
        # A running build locks its folder; the kernel releases the lock of a dead one.
        for staging in self.root.glob(".*.staging-*"):
            try:
                os.close(lock(staging))
            except BlockingIOError:
                continue
            shutil.rmtree(staging, ignore_errors=True)


def _holds_model(folder: Path) -> bool:
    """Look for a configuration, or files of a model; False where the folder cannot be read."""
    try:
        inside = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        found = any(path.name in _MODELS for each in inside for path in each.iterdir())
        return found or (folder / CONFIG_FILE).is_file()
    except OSError:  # such as lost+found
        return False


def _finish(staging: Path) -> None:
    staging.chmod(0o755)  # mkdtemp's 0700 would keep another user's server out
    for path in [*staging.rglob("*"), staging]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
