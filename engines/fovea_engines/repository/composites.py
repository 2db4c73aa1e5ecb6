"""Reads files of packages in the folder of a model.

One may make it a model of several (`fovea.folders`); others are checked (`fovea.checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from fovea_engines.repository.card import EngineCard, StageAgreement
from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import FoveaError

StageRow = dict[str, str]
"""A stage for people: its "name", its "model", what of an image it "sees", and what it "gives"."""


class MadeOfSeveral(Protocol):
    """A model made of others.

    Attributes:
        models: names of the others, the first of which answers for labels, task and options.
        reference: what it found on the images of `refer`, for people; empty without.
    """

    models: tuple[str, ...]
    reference: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the folder of a model; InvalidModel if its file cannot be used."""
        ...

    def described(self, cards: Mapping[str, EngineCard]) -> tuple[StageRow, ...]:
        """Return its stages, by the cards of its models; InvalidModel if these do not fit."""
        ...

    def refer(self, images: Path, *, check: bool) -> Sequence[StageAgreement]:
        """Keep what it finds on images as its reference, or check that it finds the same.

        InvalidOption: there is no reference to check, or it is of other images.
        """
        ...


def composite_file(folder: Path) -> str | None:
    """Return the name of the file that makes a folder such a model.

    None if it is another model, or may not be read.
    """
    try:
        names = entry_points(Group.FOLDERS)
        return next((name for name in names if (folder / name).is_file()), None)
    except PermissionError:
        return None


def read_composite(folder: Path) -> MadeOfSeveral:
    """Read a folder that has such a file; raises as `MadeOfSeveral.read`."""
    file = composite_file(folder)
    assert file is not None, "it was found"
    kind: type[MadeOfSeveral] = load(Group.FOLDERS, file)
    return kind.read(folder)


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
