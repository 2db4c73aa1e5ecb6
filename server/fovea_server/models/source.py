"""The directory and the configuration from which a model is loaded.

A server may have several repositories; `Repositories` finds the directory of a model in them.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fovea_engines.repository.config_pbtxt import CONFIG_FILE, drop_version_policy
from fovea_engines.repository.history import HISTORY_FILE, History
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.repository.repository import ModelRepository, check_name
from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound, Unavailable
from fovea_server.models.config.config import load_config
from fovea_server.pipelines.recipe import is_pipeline, pipeline_config
from fovea_server.settings import Settings

log = logging.getLogger(__name__)

Stamp = frozenset[tuple[str, int, int]]
"""Path, modification time in nanoseconds, and size in bytes of every file below a directory.

A directory counts as a file of size 0.
"""


class Repositories:
    """Finds models in several repositories; a repository that is given twice counts once.

    Args:
        roots: directories of the repositories ("roots").
        model_name: name of a model whose own directory may be one of the roots.
        only: names of the models to list; None for all models.
    """

    def __init__(
        self,
        roots: Iterable[Path],
        model_name: str | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self._only = only
        places = {root.resolve(): root for root in roots}
        self._roots = tuple(places.values())
        self._name = None if model_name is None else check_name(model_name)
        self._devices: dict[Path, int] = {}
        """Device number of each root's file system when the root last contained a model."""
        self._misnamed: set[Path] = set()

    def __str__(self) -> str:
        """List the paths of the repositories, as they were given."""
        return ", ".join(map(str, self._roots))

    def folders(self) -> set[str]:
        """Return the names of directories that may contain a model.

        Raises:
            NotFound, Unavailable: see `ModelRepository`.
        """
        found = {name for each in self._all for name in each.folders()} | self._single()
        return set(filter(self._lists, found))

    def models(self) -> tuple[str, ...]:
        """List the models by name, including models without a version, which cannot be loaded.

        Raises:
            NotFound, Unavailable: see `ModelRepository`.
            Unavailable: the file system that contained the models is not mounted.
        """
        found = self._single()
        for root in self._models:
            self._devices[root] = root.stat().st_dev
        for each in self._all:
            names, device = each.models(), each.root.stat().st_dev
            if names:
                self._devices[each.root] = device
            elif self._devices.get(each.root, device) != device:
                raise Unavailable(
                    f"{each.root} is empty and on a different file system than before: mount the "
                    "file system with the models"
                )
            made = (name for name in each.folders() if is_pipeline(each.root / name))
            found |= {*names, *each.versionless(), *each.unreadable(), *made}
            self._warn_of_names(each)
        return tuple(sorted(filter(self._lists, found)))

    def _warn_of_names(self, repository: ModelRepository) -> None:
        for name in repository.misnamed():
            if (path := repository.root / name) not in self._misnamed:
                self._misnamed.add(path)
                log.warning(
                    "the model in folder %r is not served: rename the folder (at most 128 "
                    "letters, digits, '_', '-' and '.'), and the name in its config.pbtxt",
                    name,
                )

    def _lists(self, name: str) -> bool:
        return self._only is None or name in self._only

    def _single(self) -> set[str]:
        return {self._name} if self._name and self._models else set()

    @property
    def _models(self) -> list[Path]:
        """Roots that are themselves the directory of a model.

        This may change while the server polls.
        """
        return [root for root in self._roots if self._name is not None and _is_model(root)]

    @property
    def _all(self) -> list[ModelRepository]:
        models = self._models
        return [ModelRepository(root) for root in self._roots if root not in models]

    def advice(self) -> str:
        """Return advice for the user of a repository without models.

        Clients read the advice, so it contains no path.
        """
        for root in (root.resolve() for root in self._roots):
            if _is_model(root):
                return f"{root.name} is a model's folder: serve its parent, or give --model-name"
            if file := min(root.glob("[!.]*.onnx"), default=None):
                return f"{file.name} is an ONNX file: build an engine from it with `fovea build`"
        return "create one with `fovea build`, then start again"

    def folder(self, name: str) -> Path:
        """Find the directory of a model; the directory need not exist.

        Raises:
            InvalidModel: several repositories contain the model.
        """
        folders = [repository.root / name for repository in self._all]
        folders += self._models if name == self._name else ()
        found = [folder for folder in folders if folder.is_dir()]
        if len(found) > 1:
            raise InvalidModel(
                f"failed to poll model '{name}': not unique across all model repositories: "
                f"{' and '.join(map(str, found))}: rename or remove one of them"
            )
        return (found or folders)[0]


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() or any(folder.glob("[1-9]*/model.*"))


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot of a model's directory and configuration.

    Two snapshots are equal if nothing changed.

    Attributes:
        folder: directory of the model.
        config: configuration from config.pbtxt, or from the request.
        versions: version numbers on disk, ascending.
        stamps: paths, modification times and sizes of the files in each entry of the directory, by
            the name of the entry.
        history: the promotion history.
        read_at: value of `time.monotonic()` before the directory was read.
    """

    folder: Path
    config: ModelConfig
    versions: tuple[int, ...]
    stamps: dict[str, Stamp]
    history: History = field(default_factory=History)
    read_at: float = field(default_factory=time.monotonic, compare=False)

    @classmethod
    def read(cls, folder: Path, name: str, settings: Settings, config: str | None = None) -> Self:
        """Read the present state of a model's directory.

        Args:
            folder: directory of the model.
            name: name of the model.
            settings: settings of the server.
            config: JSON that replaces config.pbtxt.

        Raises:
            NotFound: the directory does not exist.
            InvalidModel: the configuration cannot be used, or the directory cannot be read.
        """
        now = time.monotonic()
        try:
            if not folder.is_dir():
                raise NotFound(f"the folder {folder} does not exist: put the model there")
            # Hidden entries are ignored, because macOS creates hidden files when a user opens a
            # directory.
            shown = (entry for entry in os.scandir(folder) if not entry.name.startswith("."))
            stamps = {entry.name: frozenset(_stamps(entry)) for entry in shown}
            if config is None and is_pipeline(folder):
                return cls(folder, pipeline_config(folder, name), (1,), stamps)
            models = ModelRepository(folder.parent)
            return cls(
                folder,
                load_config(
                    folder,
                    name,
                    override=config,
                    variant=settings.model_config_name,
                    required=settings.disable_auto_complete_config,
                    renamed=name == settings.model_name,
                ),
                models.versions(folder.name),
                stamps,
                models.history(folder.name),
                now,
            )
        except OSError as error:
            failed: type[FoveaError] = InvalidModel
            reason = f"{error.filename} cannot be read: {error.strerror}"
        except (NotFound, InvalidModel) as error:
            failed, reason = type(error), str(error)
        # Clients read the reason, and the path of the repository must not be disclosed to them.
        raise failed(reason.replace(f"{folder.parent}/", ""))

    @property
    def served(self) -> tuple[int, ...]:
        """The versions to load.

        Raises:
            InvalidModel: the version policy names no existing version.
        """
        return self.history.served(self.config.served(self.versions), self.versions)

    def same_version(self, other: Source, version: int) -> bool:
        """Return whether a version is the same in both sources, so that it need not be reloaded."""
        return (
            self.folder == other.folder
            and drop_version_policy(self.config) == drop_version_policy(other.config)
            and self._files_of(version) == other._files_of(version)
        )

    def _files_of(self, version: int) -> dict[str, Stamp]:
        """Return the stamps of the files that a version reads: its own files and shared files."""
        return {
            name: stamp
            for name, stamp in self.stamps.items()
            if name == str(version)
            or not (name.isdecimal() or name.endswith(".pbtxt") or name == HISTORY_FILE)
        }


def _stamps(entry: os.DirEntry[str], *above: tuple[int, int]) -> Iterator[tuple[str, int, int]]:
    try:
        found = entry.stat()
    except OSError:
        # A broken or circular link counts as a file.
        found = entry.stat(follow_symlinks=False)
    place = found.st_dev, found.st_ino
    if not stat.S_ISDIR(found.st_mode):
        yield entry.path, found.st_mtime_ns, found.st_size
    elif place not in above:
        yield entry.path, found.st_mtime_ns, 0
        for inner in os.scandir(entry.path):
            yield from _stamps(inner, *above, place)
