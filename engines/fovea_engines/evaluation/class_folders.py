"""Measures classifiers and embeddings on images that are sorted into directories.

For a classifier, each directory is a class. For embeddings, each directory is a person or a thing.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import has_images, image_files, read_image
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import ClassAccuracy, MatchAccuracy
from fovea_engines.repository.files import file_sha256, json_sha256
from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.embedding import Embedding
from fovea_preprocess.errors import InvalidOption

FIRST = 5
"""Number of the best classes, or of the best matches, that are considered for an image."""

Classify = Callable[[Path], Sequence[str]]
"""Function that returns the names of an image's best classes, best first.

The name of a class without a label is its number.
"""

Embed = Callable[[Path], NDArray[np.float32]]
"""Function that returns the embedding of an image file. The embedding has length 1."""

# Number of images that are compared with all images at once. If all images were compared at once,
# the memory would grow with the square of their number.
_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class ClassFolders:
    """Images in directories. The name of a directory is the name or the id of a class."""

    path: Path
    images: tuple[Path, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return self.images

    def keep_images(self, paths: Container[Path]) -> Self:
        """Return the dataset with only these images."""
        return replace(self, images=tuple(each for each in self.images if each in paths))

    def match_classes(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return the dataset itself, after a check of its classes.

        Raises:
            InvalidOption: the model lacks a class of the directories.
        """
        known = [str(i) for i in range(num_classes or 0)] if labels is None else labels
        strangers = sorted({image.parent.name for image in self.images}.difference(known))
        if strangers and known:
            raise InvalidOption(
                f"{self.path} has a folder {strangers[0]!r}, but the model's classes are "
                f"{', '.join(known[:FIRST])}, ...: give each folder the name of a class"
            )
        return self

    def sha256(self) -> str:
        """Return the SHA-256 of all images and their classes as hex digits."""
        return json_sha256([[one.parent.name, file_sha256(one)] for one in self.images])


def read_class_folders(data: Path) -> ClassFolders | None:
    """Read a directory with a subdirectory of images for each class.

    If there are no images in subdirectories, return None.
    """
    folders = sorted(each for each in data.glob("*") if has_images(each))
    files = (file for folder in folders for file in image_files(folder, sys.maxsize))
    return ClassFolders(data, tuple(files)) if folders else None


def classify_with(engine: Engine) -> Classify:
    """Return a function that classifies images with an engine."""

    def classify(image: Path) -> list[str]:
        found = engine.predict(read_image(image))
        assert isinstance(found, Classes), "the task was checked"
        return [class_name(engine.labels, each) for each in found.class_ids[:FIRST].tolist()]

    return classify


def measure_classes(
    classify: Classify, dataset: ClassFolders, progress: Progress | None = None
) -> ClassAccuracy:
    """Measure top-1 and top-5 accuracy.

    They are the fractions of images whose class is the best one, or one of the best five.
    """
    progress = progress or Progress()
    first: dict[str, list[bool]] = defaultdict(list)
    five = 0
    with progress.phase("accuracy"):
        for image in progress.each(dataset.images, len(dataset.images)):
            names, name = classify(image), image.parent.name
            first[name].append(name in names[:1])
            five += name in names[:FIRST]
    count = len(dataset.images)
    return ClassAccuracy(
        images=count,
        top1=sum(map(sum, first.values())) / count,
        top5=five / count,
        per_class={name: sum(hits) / len(hits) for name, hits in first.items()},
    )


def embed_with(engine: Engine) -> Embed:
    """Return a function that computes embeddings with an engine."""

    def embed(image: Path) -> NDArray[np.float32]:
        found = engine.predict(read_image(image))
        assert isinstance(found, Embedding), "the task was checked"
        return found.unit

    return embed


def measure_matches(
    embed: Embed, dataset: ClassFolders, progress: Progress | None = None
) -> tuple[MatchAccuracy, list[tuple[str, str]]]:
    """Measure how often the most similar image is from the same directory (recall at 1 and 5).

    Each image is compared with all other images. An image that is alone in its directory is not
    used as a query, but can be a wrong match of other images.

    Returns:
        The accuracy, and for each query its directory and the directory of its best match.

    Raises:
        InvalidOption: no directory has two images.
    """
    names = np.array([image.parent.name for image in dataset.images])
    counts = Counter(names.tolist())
    sought = np.flatnonzero([counts[name] > 1 for name in names.tolist()])
    if not len(sought):
        raise InvalidOption(
            f"{dataset.path} has no folder with two images: the measurement searches each image "
            "among the others of its folder, so put at least two into each"
        )
    progress = progress or Progress()
    with progress.phase("accuracy"):
        vectors = np.stack([embed(image) for image in progress.each(dataset.images, len(names))])
    first: dict[str, list[bool]] = defaultdict(list)
    pairs: list[tuple[str, str]] = []
    five = 0
    for start in range(0, len(sought), _BLOCK):
        rows = sought[start : start + _BLOCK]
        cosines = vectors[rows] @ vectors.T
        cosines[np.arange(len(rows)), rows] = -np.inf  # an image must not match itself
        best = _best(cosines, min(FIRST, len(names) - 1))
        for name, found in zip(names[rows].tolist(), names[best].tolist(), strict=True):
            first[name].append(found[0] == name)
            five += name in found
            pairs.append((name, found[0]))
    accuracy = MatchAccuracy(
        images=len(sought),
        recall1=sum(map(sum, first.values())) / len(sought),
        recall5=five / len(sought),
        per_class={name: sum(hits) / len(hits) for name, hits in first.items()},
    )
    return accuracy, pairs


def _best(cosines: NDArray[np.float32], most: int) -> NDArray[np.intp]:
    """Return the indices of the `most` largest numbers of each row, largest first."""
    # Do not sort all numbers: this would take longer than computing them.
    near = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(cosines, near, axis=1), axis=1)
    return np.take_along_axis(near, order, axis=1)
