"""Labelled images, which a package reads in their formats, and measures engines on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from fovea_engines.engine import Engine
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import InvalidOption


class Labels(Protocol):
    """Labelled images of one kind of task."""

    @property
    def path(self) -> Path:
        """The file or the folder of the labels."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files of the images."""

    def for_model(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return them with the classes of a model, or raise InvalidOption where it lacks one."""

    def sha256(self) -> str:
        """Return a hex digest of all images and labels."""


class LabelReader(Protocol):
    """A module with these functions, by an entry point of `fovea.labels`."""

    def read_labelled(self, data: Path, images: Path | None) -> Labels:
        """Read labels, and find their images in a folder."""

    def read_class_names(self, data: Path) -> tuple[str, ...] | None:
        """Return the names of classes that labels have; None where nothing names them."""

    def described(self, labelled: Labels) -> str:
        """Return the number of measured images and the name of their split."""

    def check_task(self, labelled: Labels, task: str) -> None:
        """Refuse, as InvalidOption, labels of another task than a model's."""

    def measure(self, engine: Engine, labelled: Labels, progress: Progress) -> AnyAccuracy:
        """Measure an engine whose classes are those of the labels."""


def label_reader() -> LabelReader:
    """Return Fovea's own, which is found before those of other packages."""
    for name in entry_points(Group.LABELS):
        reader: LabelReader = load(Group.LABELS, name)
        return reader
    raise InvalidOption("no installed package reads labels: install fovea-serve again")
