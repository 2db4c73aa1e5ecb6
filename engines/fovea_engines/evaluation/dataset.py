"""Reads labelled images, and matches their classes with a model's classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import yaml

from fovea_engines.evaluation.coco import coco_class_names, read_coco
from fovea_engines.evaluation.labelled_image import LabelledImage as LabelledImage
from fovea_engines.evaluation.yolo import is_yaml, read_yolo, yolo_class_names
from fovea_engines.repository.files import file_sha256, json_sha256
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.text import counted

_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled images and their class names.

    The images have the order of the COCO file, or are sorted by name.

    Attributes:
        path: COCO file, or directory of YOLO labels.
        images: images with their labels.
        class_names: class names by id; None if there are no names.
        split: name of the measured split, such as val; None if the dataset has no splits.
    """

    path: Path
    images: tuple[LabelledImage, ...]
    class_names: tuple[str, ...] | None
    split: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return tuple(image.path for image in self.images)

    def keep_images(self, paths: Container[Path]) -> Self:
        """Return the dataset with only these images."""
        return replace(self, images=tuple(each for each in self.images if each.path in paths))

    def match_classes(
        self, labels: Sequence[str | None] | None, num_classes: int | None = None
    ) -> Self:
        """Return the dataset with the class ids and names of a model.

        Classes are matched by name. If a few names differ (aeroplane, airplane), all classes are
        matched by id. This requires that the dataset and the model have the same number of classes,
        and that most names are equal.

        Args:
            labels: class names of the model by id. An entry of None is a class that the model never
                detected. It may match any class of the dataset that has no match by name.
            num_classes: number of the model's classes; None if unknown.

        Raises:
            InvalidOption: the model lacks a class of the dataset, or two of its classes have the
                same name.
        """
        if self.class_names is None and num_classes is not None:
            self._check_class_ids(num_classes)
        if labels is None:
            self._check_count(num_classes)
            return self
        known = [label for label in labels if label is not None]
        if twins := [name for name, times in Counter(known).items() if times > 1]:
            raise InvalidOption(
                f"two classes of the model have the name {twins[0]!r}: build it with --labels "
                "that have a different name for each class"
            )
        names = self.class_names
        if names is None:
            numbered = (str(i) if label is None else label for i, label in enumerate(labels))
            return replace(self, class_names=tuple(numbered))
        used = {names[class_id] for image in self.images for class_id in image.class_ids}
        strangers = sorted(used.difference(known))
        if strangers and share_numbers(names, labels):
            either = zip(names, labels, strict=True)
            return replace(self, class_names=tuple(label or own for own, label in either))
        if strangers and (None not in labels or len(strangers) == len(used)):
            more = ", ..." if len(known) > _NAMES_SHOWN else ""
            raise InvalidOption(
                f"{self.path} has the class {strangers[0]!r}, but the model only has "
                f"{', '.join(known[:_NAMES_SHOWN])}{more}: give both the same names (--labels of "
                "a build), or remove the objects of that class"
            )
        theirs = [*labels, *strangers]
        ids = np.array([theirs.index(name) if name in used else -1 for name in names], np.int32)
        images = (replace(image, class_ids=ids[image.class_ids]) for image in self.images)
        class_names = (str(i) if name is None else name for i, name in enumerate(theirs))
        return replace(self, images=tuple(images), class_names=tuple(class_names))

    def _check_class_ids(self, num_classes: int) -> None:
        for image in self.images:
            if (most := max(image.class_ids.tolist(), default=0)) >= num_classes:
                raise InvalidOption(
                    f"{self.path}, labels of {image.path.name}: unknown class {most}; the model's "
                    f"classes are 0 to {num_classes - 1}: use labels that were made for this model"
                )

    def _check_count(self, num_classes: int | None) -> None:
        names = self.class_names
        if names is not None and num_classes is not None and len(names) != num_classes:
            raise InvalidOption(
                f"{self.path} has {counted(len(names), 'class')}, but the model has {num_classes} "
                "without names, so Fovea cannot match them: build the model with --labels"
            )

    def sha256(self) -> str:
        """Return the SHA-256 of all images and labels as hex digits. All image files are read."""
        return json_sha256(
            [
                [
                    image.path.name,
                    file_sha256(image.path),
                    image.boxes.tolist(),
                    image.class_ids.tolist(),
                    image.crowd.tolist(),
                    image.areas.tolist(),
                    None if image.rotated is None else image.rotated.tolist(),
                    image.outlines,
                    None if image.keypoints is None else image.keypoints.tolist(),
                ]
                for image in self.images
            ]
        )


def read_dataset(data: Path, images: Path | None = None) -> Dataset:
    """Read a COCO JSON file, YOLO's data.yaml, or a directory of YOLO label files.

    The label files may also be in the subdirectories `labels` or `labels/val`. A directory may
    contain a data.yaml that lists its splits.

    The class ids of the result are the ids in YOLO labels. For COCO, they are the positions of the
    categories in the order of the category ids. `Dataset.match_classes` maps them to a model's ids.

    Args:
        data: the file or directory of the labels.
        images: directory of the images. If it is None, images are searched beside a COCO file, or
            for YOLO in the directory `images` beside `labels`.

    Raises:
        InvalidOption: the labels are malformed or empty. The message names the file and the place.
        NotFound: the labels or an image are missing.
        InvalidImage: an image is damaged.
    """
    if images is not None and not images.is_dir():
        raise NotFound(f"{images} is not a folder of images")
    if data.is_dir() or (data.is_file() and is_yaml(data)):
        labelled, names, split = read_yolo(data, images)
    elif data.is_file():
        labelled, names = read_coco(data, data.parent if images is None else images)
        split = None
    else:
        raise NotFound(
            f"{data} does not exist: give a COCO JSON file, a data.yaml, or a folder of YOLO "
            "label files"
        )
    if not any((~image.crowd).any() for image in labelled):
        seen = counted(len(labelled), "image")
        raise InvalidOption(f"{data} has no labelled object on its {seen}")
    return Dataset(data, tuple(labelled), names, split)


def read_class_names(data: Path) -> tuple[str, ...] | None:
    """Return the class names of labels that `read_dataset` can read. Without names, return None."""
    return yolo_class_names(data) if data.is_dir() or is_yaml(data) else coco_class_names(data)


def share_numbers(names: Sequence[str], labels: Sequence[str | None]) -> bool:
    """Return whether two lists of names have the same length and most of the names are equal."""
    if len(names) != len(labels):
        return False
    known = sum(label is not None for label in labels)
    return 2 * sum(map(_is_same_class, names, labels)) > known


def _is_same_class(name: str, label: str | None) -> bool:
    """Return whether a class name of the labels and a model's class name mean the same class.

    The model's name may differ because a training program read it as YAML: from
    `names: [no, yes]` it reads the names False and True.
    """
    if name == label:
        return True
    try:
        return str(yaml.safe_load(name)) == label
    except (yaml.YAMLError, ValueError):
        return False
