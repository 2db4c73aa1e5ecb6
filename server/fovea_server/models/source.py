"""The folder and configuration that a model is loaded from, and their changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fovea_engines.repository.config_pbtxt import ModelConfig
from fovea_engines.repository.model_config import without_version_policy
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidRequest, NotFound
from fovea_server.models.config.config import load_config
from fovea_server.settings import Settings

Stamp = frozenset[tuple[str, int, int]]
"""Path, time of change (ns) and size of every file below a folder."""


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot of a model's folder and configuration.

    Two are equal if nothing has changed between them.

    Attributes:
        config: from config.pbtxt, or from the request.
        versions: on disk, ascending.
        stamps: of each entry of the folder, by its name.
    """

    folder: Path
    config: ModelConfig
    versions: tuple[int, ...]
    stamps: dict[str, Stamp]

    @classmethod
    def read(cls, folder: Path, name: str, settings: Settings, config: str | None = None) -> Self:
        """Read a model's folder as it is now; `config` is JSON that replaces config.pbtxt.

        Errors name files as they lie in the repository.

        Raises:
            NotFound: the folder is not there.
            InvalidModel: its configuration cannot be used, or the folder cannot be read.
        """
        try:
            return cls._read(folder, name, settings, config)
        except OSError as error:
            failed: type[FoveaError] = InvalidModel
            said = f"{error.filename} cannot be read: {error.strerror}"
        except (NotFound, InvalidModel) as error:
            failed, said = type(error), str(error)
        # Clients read this, and need not know where the repository lies.
        raise failed(said.replace(f"{folder.parent}/", ""))

    @classmethod
    def _read(cls, folder: Path, name: str, settings: Settings, config: str | None) -> Self:
        if not folder.is_dir():
            raise NotFound(f"there is no folder {folder}: put the model there")
        return cls(
            folder,
            load_config(
                folder,
                name,
                override=config,
                variant=settings.model_config_name,
                required=settings.disable_auto_complete_config,
            ),
            ModelRepository(folder.parent).versions(folder.name),
            {entry.name: frozenset(_stamps(entry)) for entry in os.scandir(folder)},
        )

    def served(self) -> tuple[int, ...]:
        """Choose the versions to serve.

        Raises:
            InvalidModel: the version policy chooses none that exists.
        """
        return self.config.served(self.versions)

    def same_version(self, other: Source, version: int) -> bool:
        """Return True if a version loaded from `other` need not be loaded again from this."""
        return (
            self.folder == other.folder
            and without_version_policy(self.config) == without_version_policy(other.config)
            and self._files_of(version) == other._files_of(version)
        )

    def _files_of(self, version: int) -> dict[str, Stamp]:
        """Stamp the files that a version reads: its folder, and files beside it."""
        return {
            name: stamp
            for name, stamp in self.stamps.items()
            if name == str(version) or not (name.isdecimal() or name.endswith(".pbtxt"))
        }


def _stamps(entry: os.DirEntry[str], *above: tuple[int, int]) -> Iterator[tuple[str, int, int]]:
    try:
        found = entry.stat()
    except OSError:
        # A broken or circular link is an entry all the same.
        found = entry.stat(follow_symlinks=False)
    place = found.st_dev, found.st_ino
    if not stat.S_ISDIR(found.st_mode):
        yield entry.path, found.st_mtime_ns, found.st_size
    elif place not in above:
        yield entry.path, found.st_mtime_ns, 0
        for inner in os.scandir(entry.path):
            yield from _stamps(inner, *above, place)


def check_name(name: str) -> None:
    """Refuse names that could lead out of the repository, or forge a line of the log.

    Raises:
        InvalidRequest: Triton's text, where it has one.
    """
    if not name:
        raise InvalidRequest("model name must not be empty")
    if not name.strip():
        raise InvalidRequest("model name must not contain only whitespace characters")
    if ".." in name or "/" in name:
        raise InvalidRequest(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    if not name.isprintable():
        raise InvalidRequest(
            f"invalid model name {name!r}, model name must not contain control characters"
        )
