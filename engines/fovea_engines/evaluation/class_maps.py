"""Measures semantic segmentation models on images with a labelled class for each pixel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fovea_engines.engine import Engine
from fovea_engines.evaluation.labelled_image import check_size
from fovea_engines.evaluation.samples import image_files, is_image, read_image
from fovea_engines.evaluation.yolo import CLASSES_FILE
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import MapAccuracy
from fovea_engines.repository.files import file_sha256, json_sha256
from fovea_engines.repository.labels import read_labels
from fovea_engines.results.class_names import class_name
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap
from fovea_preprocess.errors import InvalidOption, NotFound

UNLABELLED: Final = (255, NOTHING)
"""Levels of pixels without a class, in VOC's files and in files from `class_png`.

A level with a name in classes.txt is a class even if it is one of these levels.
"""

_SHOWN = 8

Ids = NDArray[np.uint16]


class FoundMap(NamedTuple):
    """A model's result: the class of each pixel, [height, width], and the class names by id."""

    ids: Ids
    names: Mapping[int, str]


Segment = Callable[[Path], FoundMap]


@dataclass(frozen=True, slots=True, eq=False)
class ClassMaps:
    """Images with class maps. A class map is a PNG file whose grey levels or indices are classes.

    Attributes:
        path: directory of the PNG files.
        images: pairs of an image and its PNG file.
        names: class name of each level; "" for a level that is not measured. Several levels may
            have the same name. None if the levels are the model's class ids.
    """

    path: Path
    images: tuple[tuple[Path, Path], ...]
    names: tuple[str, ...] | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return tuple(image for image, _ in self.images)

    def keep_images(self, paths: Container[Path]) -> Self:
        """Return the dataset with only these images."""
        return replace(self, images=tuple(each for each in self.images if each[0] in paths))

    def match_classes(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return the dataset itself, after a check of its classes.

        Raises:
            InvalidOption: the model lacks a class name or a level of the dataset.
        """
        count = num_classes if labels is None else len(labels)
        if self.names is None and count is not None:
            self._check_levels(count)
        known = [str(i) for i in range(num_classes or 0)] if labels is None else labels
        strangers = [name for name in self.names or () if name and name not in known]
        if strangers and known:
            more = ", ..." if len(known) > _SHOWN else ""
            raise InvalidOption(
                f"{self.path / CLASSES_FILE} has the class {strangers[0]!r}, but the model only "
                f"has {', '.join(known[:_SHOWN])}{more}: write the model's name there, or leave "
                "the line empty to ignore those pixels"
            )
        return self

    def _check_levels(self, classes: int) -> None:
        for _, file in self.images:
            levels = np.unique(_levels(file)).tolist()
            beyond = [each for each in levels if each >= classes and each not in UNLABELLED]
            if beyond:
                raise InvalidOption(
                    f"{file} has the level {beyond[0]}, but the model's classes are 0 to "
                    f"{classes - 1}: write the class name of each level into {CLASSES_FILE} in "
                    "its folder, one per line, with empty lines for levels to ignore"
                )

    def sha256(self) -> str:
        """Return the SHA-256 of all images and their class maps as hex digits."""
        files = [(path.name, file_sha256(path)) for pair in self.images for path in pair]
        return json_sha256([files, self.names])

    def level_names(self) -> dict[int, str]:
        """Return the name of each level that is measured."""
        if self.names is None:
            return {level: str(level) for level in range(NOTHING) if level not in UNLABELLED}
        return {level: name for level, name in enumerate(self.names) if name}


def holds_maps(data: Path) -> bool:
    """Return whether a directory contains PNG files and does not contain labels of boxes."""
    texts = {path.name for path in data.glob("[!.]*.txt")} - {CLASSES_FILE}
    return not texts and any(map(is_image, data.glob("*.png")))


def read_class_maps(data: Path, images: Path | None = None) -> ClassMaps:
    """Read a directory of PNG files. classes.txt in it may contain the names of levels.

    An image has the name of its PNG file, but may have another suffix. The images are in the
    directory `images`, which is by default the directory "images" beside `data`.

    Raises:
        NotFound: an image is missing.
    """
    pairs = pairs_of(data, sorted(filter(is_image, data.glob("*.png"))), images)
    names = read_labels(data / CLASSES_FILE) if (data / CLASSES_FILE).is_file() else None
    return ClassMaps(data, pairs, names)


def pairs_of(
    data: Path, files: Iterable[Path], images: Path | None
) -> tuple[tuple[Path, Path], ...]:
    """Return each file with the image of the same name. `read_class_maps` describes the errors."""
    folder = data.parent / "images" if images is None else images
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist: give the folder of the images with --images")
    by_stem = {image.stem: image for image in image_files(folder, sys.maxsize)}
    pairs = []
    for file in files:
        if file.stem not in by_stem:
            raise NotFound(
                f"{file}: the image {folder / file.stem}.jpg (or .png ...) does not exist: give "
                "the folder of the images with --images"
            )
        pairs.append((by_stem[file.stem], file))
    return tuple(pairs)


def segment_with(engine: Engine) -> Segment:
    """Return a function that segments an image with an engine."""

    def segment(image: Path) -> FoundMap:
        found = engine.predict(read_image(image))
        assert isinstance(found, ClassMap), "the task was checked"
        ids = found.pixels()
        return FoundMap(ids, {n: class_name(engine.labels, n) for n in np.unique(ids).tolist()})

    return segment


def measure_maps(
    segment: Segment, dataset: ClassMaps, progress: Progress | None = None
) -> MapAccuracy:
    """Measure the IoU of each class over all labelled pixels.

    The mean IoU is over the classes that occur in the labels. Unlabelled pixels are ignored.
    """
    progress = progress or Progress()
    levels = dataset.level_names()
    names = sorted(set(levels.values()))
    number_of = {name: number for number, name in enumerate(names)}
    # The last entry counts results with a class that does not occur in the labels' names.
    hit, labelled, taken = np.zeros((3, len(names) + 1), np.int64)
    truth_of = _table({level: number_of[name] for level, name in levels.items()}, len(names))
    called: dict[int, str] = {}
    with progress.phase("accuracy"):
        for image, file in progress.each(dataset.images, len(dataset.images)):
            truth, found = truth_of[_levels(file)], segment(image)
            height, width = truth.shape
            check_size(image, found.ids.shape[1], found.ids.shape[0], width, height)
            called |= found.names
            own = {each: str(each) for each in called} if dataset.names is None else called
            numbers = {each: number_of.get(name, len(names)) for each, name in own.items()}
            have = _table(numbers, len(names))[found.ids]
            counted = truth < len(names)
            hit += np.bincount(truth[counted & (truth == have)], minlength=len(hit))
            labelled += np.bincount(truth[counted], minlength=len(hit))
            taken += np.bincount(have[counted], minlength=len(hit))
    if not labelled.any():
        raise InvalidOption(
            f"no pixel in {dataset.path} has a class, so there is nothing to measure: check the "
            "PNG files"
        )
    overlap = hit / np.maximum(labelled + taken - hit, 1)
    shown = {str(each): name for each, name in called.items()} if dataset.names is None else {}
    per_class = {
        shown.get(name, name): float(value)
        for name, value, pixels in zip(names, overlap, labelled, strict=False)
        if pixels
    }
    return MapAccuracy(
        images=len(dataset.images),
        miou=float(np.mean(list(per_class.values()))),
        pixel_accuracy=float(hit.sum() / labelled.sum()),
        per_class=per_class,
    )


def _table(numbers: Mapping[int, int], other: int) -> NDArray[np.intp]:
    """Return an array that converts ids to numbers. Ids without a number become `other`."""
    table = np.full(NOTHING + 1, other, np.intp)
    table[list(numbers)] = list(numbers.values())
    return table


def _levels(file: Path) -> Ids:
    try:
        with Image.open(file) as image:
            levels = np.asarray(image)
    except (OSError, UnidentifiedImageError) as error:
        raise InvalidOption(f"{file} is not a PNG file with classes ({error})") from error
    if levels.ndim != 2 or not 0 <= levels.min() <= levels.max() <= NOTHING:
        raise InvalidOption(
            f"{file} is a colour image: a class map must have one grey level or palette index per "
            "pixel"
        )
    return levels.astype(np.uint16)
