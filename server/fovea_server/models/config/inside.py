"""Resolves the files that a configuration names, which may have come over the network."""

from __future__ import annotations

from pathlib import Path

from fovea_preprocess.errors import InvalidModel


def inside(folder: Path, name: str) -> Path:
    """Join a folder and the name of a file below it; links in the folder are followed.

    Raises:
        InvalidModel: the name leads out of the folder.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise InvalidModel(
            f"'{name}' of the configuration leads out of {folder}: name a file there"
        )
    return folder / path
