"""Checks files that packages read in the folder of a model (`fovea.checks`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import FoveaError


def faults_beside(folder: Path, labels: Sequence[str] | None) -> Iterator[str]:
    """Yield what is wrong with these files; the model is served all the same.

    Args:
        folder: of the model.
        labels: class names by id, where they are known.
    """
    for file in entry_points(Group.CHECKS):
        if (folder / file).is_file():
            try:
                load(Group.CHECKS, file)(folder, labels)
            except FoveaError as error:
                yield str(error)
