"""Measures models of semantic segmentation on images whose pixels are labelled."""

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
"""Levels of pixels without a class, unless they have a name: in VOC, and from `class_png`."""

_SHOWN = 8

Ids = NDArray[np.uint16]


class FoundMap(NamedTuple):
    """The class of each pixel of an image, [height, width], and the names of the classes by id."""

    ids: Ids
    names: Mapping[int, str]


Segment = Callable[[Path], FoundMap]


@dataclass(frozen=True, slots=True, eq=False)
class ClassMaps:
    """Images, each with a PNG file whose levels, or indices, are the classes of its pixels.

    Attributes:
        path: the directory of the PNG files.
        images: pairs of image and PNG file.
        names: class names by level, "" for levels that are not measured. Several levels may have
            the same name. None if levels are the model's class ids.
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
                f"{self.path / CLASSES_FILE} has the class {strangers[0]!r}, and the model only "
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
                    f"{file} has the level {beyond[0]}, and the classes of the model are 0 to "
                    f"{classes - 1}: name the levels in {CLASSES_FILE} beside it, a line each, "
                    "empty for those that do not count"
                )

    def sha256(self) -> str:
        """Return a hex digest of all images and their classes."""
        files = [(path.name, file_sha256(path)) for pair in self.images for path in pair]
        return json_sha256([files, self.names])

    def level_names(self) -> dict[int, str]:
        """Return the name of each level that is measured."""
        if self.names is None:
            return {level: str(level) for level in range(NOTHING) if level not in UNLABELLED}
        return {level: name for level, name in enumerate(self.names) if name}


def holds_maps(data: Path) -> bool:
    """Return whether a directory has PNG files, and no labels of boxes."""
    texts = {path.name for path in data.glob("[!.]*.txt")} - {CLASSES_FILE}
    return not texts and any(map(is_image, data.glob("*.png")))


def read_class_maps(data: Path, images: Path | None = None) -> ClassMaps:
    """Read a directory of PNG files, with the names of levels in classes.txt if it exists.

    Images have the same names, apart from the suffix. They are in `images`, by default the
    directory "images" beside `data`.

    Raises:
        NotFound: an image is missing.
    """
    pairs = pairs_of(data, sorted(filter(is_image, data.glob("*.png"))), images)
    names = read_labels(data / CLASSES_FILE) if (data / CLASSES_FILE).is_file() else None
    return ClassMaps(data, pairs, names)


def pairs_of(
    data: Path, files: Iterable[Path], images: Path | None
) -> tuple[tuple[Path, Path], ...]:
    """Return pairs of image and file; errors as in `read_class_maps`."""
    folder = data.parent / "images" if images is None else images
    if not folder.is_dir():
        raise NotFound(f"{folder} is not there: name the folder of the images with --images")
    by_stem = {image.stem: image for image in image_files(folder, sys.maxsize)}
    pairs = []
    for file in files:
        if file.stem not in by_stem:
            raise NotFound(
                f"{file}: there is no image {folder / file.stem}.jpg (or .png ...): name the "
                "folder of the images with --images"
            )
        pairs.append((by_stem[file.stem], file))
    return tuple(pairs)


def segment_with(engine: Engine) -> Segment:
    """Return a function that segments with an engine."""

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

    The mean is over the classes that occur in the labels. Results on unlabelled pixels do not
    count.
    """
    progress = progress or Progress()
    levels = dataset.level_names()
    names = sorted(set(levels.values()))
    number_of = {name: number for number, name in enumerate(names)}
    # The additional entry is for results whose class has no name in the labels.
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
        raise InvalidOption(f"{dataset.path} has no pixel with a class")
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
    """Return an array of the number of each id; `other` for ids without a number."""
    table = np.full(NOTHING + 1, other, np.intp)
    table[list(numbers)] = list(numbers.values())
    return table


def _levels(file: Path) -> Ids:
    try:
        with Image.open(file) as image:
            levels = np.asarray(image)
    except (OSError, UnidentifiedImageError) as error:
        raise InvalidOption(f"{file} is not a PNG file of classes ({error})") from error
    if levels.ndim != 2 or not 0 <= levels.min() <= levels.max() <= NOTHING:
        raise InvalidOption(
            f"{file} is in colours: a map of classes has one level, or one index, a pixel"
        )
    return levels.astype(np.uint16)
