"""Manages a model repository on disk in Triton's layout: NAME/VERSION/ and NAME/config.pbtxt."""

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
"""Default of the option --repository."""
FAILED_FOLDER = "failed-build"
"""Name of the directory, inside a model's directory, with the report of the last rejected build."""
REPORT_FILE = "card.md"
"""Name of the file, inside a version directory, with the report of the build."""

Standing = Literal["current", "served", "not served"]
"""Relation of a version to the server.

A server loads the "served" versions and the "current" version. It runs the "current" version for
requests without a version number.
"""

_LISTED = 10
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_MODELS = ("model.onnx", "model.xml", "model.plan", "model.engine")
# Pattern of a version directory's name. By Triton's rule, it is a whole number without leading
# zeros.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def check_name(name: str) -> str:
    """Check that `name` is a valid model name, and return it.

    A valid name cannot lead out of the repository, and does not begin with a dot.

    Raises:
        InvalidOption: the name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"{name!r} is not a valid model name: use at most 128 letters, digits, '_', '-' and "
            "'.', and do not begin with '.'"
        )
    return name


@dataclass(frozen=True, slots=True)
class ModelRepository:
    """A directory with models and their versions.

    A version is added or replaced by renaming a complete directory. So other processes never read
    an incomplete version.
    """

    root: Path

    def folders(self) -> tuple[str, ...]:
        """Return the sorted names of the directories that may contain a model.

        Raises:
            NotFound: the repository does not exist.
        """
        if not self.root.is_dir():
            advice = "create one with `fovea build`"
            if self.root.suffix == ".onnx" and self.root.is_file():
                advice = f"build an engine with `fovea build {self.root}`, and serve its folder"
            raise NotFound(f"{self.root} is not a folder: {advice}")
        found = (p for p in self.root.iterdir() if _NAME.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(path.name for path in found))

    def misnamed(self) -> tuple[str, ...]:
        """Return the sorted names of directories with a model but an invalid model name."""
        found = (p for p in self.root.iterdir() if not _NAME.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(p.name for p in found if p.name[0] != "." and _holds_model(p)))

    def models(self) -> tuple[str, ...]:
        """Return the sorted names of the models with at least one version.

        The result omits directories that cannot be read; see `unreadable`.
        """
        denied = self.unreadable()
        return tuple(name for name in self.folders() if name not in denied and self.versions(name))

    def unreadable(self) -> tuple[str, ...]:
        """Return the sorted names of the directories that this user may not read."""

        def is_denied(name: str) -> bool:
            try:
                self.versions(name)
            except PermissionError:
                return True
            return False

        return tuple(filter(is_denied, self.folders()))

    def versionless(self) -> tuple[str, ...]:
        """Return the sorted names of the directories that contain a model but no version directory.

        The result omits names that are version numbers, for the case that a model's directory is
        used as a repository.
        """
        return tuple(
            name
            for name in self.folders()
            if not _VERSION.fullmatch(name)
            and _holds_model(self.root / name)
            and not self.versions(name)
        )

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions of a model in ascending order.

        The result is empty if the model does not exist.
        """
        folder = self.root / check_name(name)
        if not folder.is_dir():
            return ()
        found = (p for p in folder.iterdir() if _VERSION.fullmatch(p.name) and p.is_dir())
        return tuple(sorted(int(p.name) for p in found))

    def latest(self, name: str) -> int:
        """Return the highest version of a model.

        Raises:
            NotFound: the model does not exist.
        """
        versions = self.versions(name)
        if not versions:
            raise NotFound(f"no model {name!r} in {self.root}")
        return versions[-1]

    def served(self, name: str) -> tuple[int, ...]:
        """Return the versions that a server loads, according to config.pbtxt and the history.

        The versions are in ascending order, except for the last one: the server runs it for
        requests without a version number.

        Raises:
            InvalidModel: a file is damaged, or config.pbtxt selects no existing version.
        """
        config, there = read_config(self.root / check_name(name) / CONFIG_FILE), self.versions(name)
        chosen = replace(config, name=name).served(there)
        history = self.history(name)
        return history.served(chosen, there) if history.events else chosen

    def served_or_none(self, name: str) -> tuple[int, ...]:
        """Return the versions that a server loads, or () if a file or the name is invalid."""
        with suppress(InvalidModel, InvalidOption):
            return self.served(name)
        return ()

    def standing(self, name: str, version: int) -> Standing:
        """Return whether a version is "current", "served" or "not served"."""
        served = self.served_or_none(name)
        if version in served[-1:]:
            return "current"
        return "served" if version in served else "not served"

    def history(self, name: str) -> History:
        """Read the history of a model. If the model has no history file, return an empty history.

        Raises:
            InvalidModel: the history file cannot be read, or a line is not an event.
        """
        folder = self.root / check_name(name)
        return History.read(folder) if (folder / HISTORY_FILE).exists() else History()

    def folder(self, name: str, version: int | None = None) -> Path:
        """Return the directory of a version, by default of the latest version.

        Raises:
            NotFound: the model or version does not exist.
        """
        latest = self.latest(name)
        if version is not None and version not in self.versions(name):
            known = ", ".join(map(str, self.versions(name)))
            raise NotFound(
                f"no version {version} of model {name!r} in {self.root}; its versions are {known}"
            )
        return self.root / name / str(version or latest)

    def path_of(self, model: str) -> Path:
        """Return the directory of a model in the repository.

        If there is none, return `model` as a path.

        Raises:
            NotFound: the repository has no such model, and no such path exists.
        """
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
            return (
                ": create one with `fovea build MODEL.onnx`, or give another folder with "
                "--repository"
            )
        more = ", ..." if len(known) > _LISTED else ""
        return f"; its models are {', '.join(known[:_LISTED])}{more}"

    def next_version(self, name: str) -> int:
        """Return the number of the model's next version: 1 more than the highest version."""
        return max(self.versions(name), default=0) + 1

    def find(self, name: str, content_key: str) -> int | None:
        """Return the newest version of a model whose card has this content key, or None."""
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
        """Publish a new version atomically. The caller fills the yielded directory.

        The yielded directory is hidden and empty. If the `with` block ends without an error, the
        directory becomes ``NAME/<next version>``. The directory is removed if the block raises, or
        if another process has published a version with the same content key. The next build removes
        directories of killed builds.
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
        """Yield a temporary model directory that has an additional version, and its number.

        Args:
            name: name of the model.
            staging: directory with the files of the additional version.
            texts: name of each file that will be written beside the versions -> its text.
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
        """Replace a version atomically. The caller fills the yielded directory, like in `publish`.

        Raises:
            NotFound: the version does not exist.
            OSError: the repository cannot be written, or its file system cannot exchange
                directories.
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
        """Remove a version atomically.

        If the process is killed, the next build removes the remaining files.

        Raises:
            NotFound: the version does not exist.
            InvalidOption: the version is served.
        """
        with self._staging(name) as staging, locked(self.root):
            folder = self.folder(name, version)
            if version in self.served(name):
                raise InvalidOption(
                    f"version {version} of {name} is in use, so it cannot be removed"
                )
            folder.rename(staging / folder.name)
            _sync(folder.parent)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the lock of a model, and hold it during the `with` block.

        The lock works across threads and processes.
        """
        with locked(self.root / check_name(name)):
            yield

    def write_beside(self, name: str, file: str, text: str) -> None:
        """Write a file in a model's directory, beside the version directories, atomically."""
        model = self.root / check_name(name)
        # The temporary file has a constant name, so that the next build overwrites the file of a
        # killed build.
        new = model / f".{file}.new"
        with locked(self.root):
            try:
                write_file(new, text.encode())
                new.chmod(0o644)  # lets a server of another user read the file
                _sync(new)
                new.replace(model / file)
            finally:
                new.unlink(missing_ok=True)
        _sync(model)

    def remove_folder(self, name: str, folder: str) -> None:
        """Remove a directory inside a model's directory, if it exists. It must not be a version."""
        shutil.rmtree(self.root / check_name(name) / folder, ignore_errors=True)

    def empty_folder(self, name: str, folder: str) -> Path:
        """Create an empty directory inside a model's directory, and return its path.

        An existing directory with this name is replaced. It must not be a version.
        """
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
        # A running build holds the lock of its directory, and the kernel releases the locks of
        # killed processes. So a directory with a free lock is abandoned.
        for staging in self.root.glob(".*.staging-*"):
            try:
                os.close(lock(staging))
            except BlockingIOError:
                continue
            shutil.rmtree(staging, ignore_errors=True)


def _holds_model(folder: Path) -> bool:
    """Return whether a directory contains a config.pbtxt or model files.

    If the directory cannot be read, return False.
    """
    try:
        inside = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        found = any(path.name in _MODELS for each in inside for path in each.iterdir())
        return found or (folder / CONFIG_FILE).is_file()
    except OSError:  # e.g. lost+found
        return False


def _finish(staging: Path) -> None:
    staging.chmod(0o755)  # lets a server of another user read the directory
    for path in [*staging.rglob("*"), staging]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
