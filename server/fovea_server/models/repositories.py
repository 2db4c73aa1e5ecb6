"""Several model repositories, served as one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel


class Repositories:
    """Finds models in several folders, of which duplicates count once."""

    def __init__(self, roots: Iterable[Path]) -> None:
        places = {root.resolve(): root for root in roots}
        self._all = tuple(ModelRepository(root) for root in places.values())

    def __str__(self) -> str:
        """List the repositories, as they were given."""
        return ", ".join(str(repository.root) for repository in self._all)

    def folders(self) -> tuple[str, ...]:
        """List the folders that may hold a model, sorted by name.

        Raises:
            NotFound: a repository is not a folder.
        """
        return tuple(sorted({name for each in self._all for name in each.folders()}))

    def models(self) -> tuple[str, ...]:
        """List the models with at least one version, sorted by name.

        Raises:
            NotFound: a repository is not a folder.
        """
        return tuple(sorted({name for each in self._all for name in each.models()}))

    def folder(self, name: str) -> Path:
        """Find the folder of a model, whether or not it exists.

        Raises:
            InvalidModel: it is in more than one repository.
        """
        folders = [repository.root / name for repository in self._all]
        found = [folder for folder in folders if folder.is_dir()]
        if len(found) > 1:
            raise InvalidModel(
                f"failed to poll model '{name}': not unique across all model repositories: "
                f"{' and '.join(map(str, found))}: rename or remove one of them"
            )
        return found[0] if found else folders[0]
