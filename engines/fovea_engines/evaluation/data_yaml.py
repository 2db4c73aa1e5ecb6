"""Reads data.yaml, which YOLO models are trained with: images of each split, and classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fovea_engines.evaluation.samples import images_below, is_image
from fovea_engines.repository.files import text_of
from fovea_preprocess.errors import InvalidOption, NotFound

DATA_YAML = "data.yaml"
SPLITS = ("val", "valid", "validation", "test", "train")
"""A measurement takes the first of these splits that the file names."""

_NOTHING = ("", "~", "null", "Null", "NULL")


class Pair(NamedTuple):
    """An image, and the file that has its labels if there are any."""

    image: Path
    labels: Path


@dataclass(frozen=True, slots=True)
class DataYaml:
    """A data.yaml, whose scalars are texts: YAML would read a class called "no" as False."""

    file: Path
    document: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> DataYaml:
        """Read a file; InvalidOption says what is wrong with it."""
        try:
            # A loader without types: it makes texts, lists and dicts.
            document = yaml.load(text_of(file.read_bytes()), Loader=yaml.BaseLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidOption(f"{file} cannot be read as YAML: {error}") from None
        if not isinstance(document, dict):
            raise InvalidOption(f"{file} is no data.yaml: it has no `val` and `names`")
        return cls(file, document)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The class names by id, None without any; a number without a name is its own name."""
        names = self.document.get("names", "")
        if names in _NOTHING:
            return None
        if isinstance(names, dict) and names and all(str(each).isdecimal() for each in names):
            by_id = {int(number): name for number, name in names.items()}
            names = [by_id.get(number, str(number)) for number in range(max(by_id) + 1)]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidOption(f"{self.file}: `names` is no list of class names")
        return tuple(names)

    @property
    def split(self) -> str:
        """The split that is measured, by its name in the file."""
        for name in SPLITS:
            if self.document.get(name) not in (None, [], *_NOTHING):
                return name
        raise InvalidOption(f"{self.file} names no folder of images as {', '.join(SPLITS)}")

    def pairs(self, folder: Path | None) -> list[Pair]:
        """List the images of the split; they are in `folder` if it is given."""
        split = self.split
        entries = self.document[split]
        entries = [entries] if isinstance(entries, str) else entries
        if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
            raise InvalidOption(
                f"{self.file}: `{split}` is no folder, no list of images in a .txt file, and no "
                "list of these"
            )
        if folder is not None:
            return self._elsewhere(split, entries, folder)
        pairs = [pair for entry in entries for pair in self._named(split, entry)]
        # An image that is named twice is measured once.
        return list({pair.image: pair for pair in pairs}.values())

    def _elsewhere(self, split: str, entries: list[str], folder: Path) -> list[Pair]:
        """Pair the images of a folder with the labels that belong to the one in the file."""
        if len(entries) > 1 or entries[0].endswith(".txt"):
            raise InvalidOption(
                f"{self.file} names more than a folder as `{split}`: leave --images out, or give "
                "the folder of the labels as --data"
            )
        named = [labels_of(place) for place in self._places(entries[0])]
        labels = next(filter(Path.is_dir, named), named[0])
        return [Pair(image, paired(image, folder, labels)) for image in images_below(folder)]

    def _named(self, split: str, entry: str) -> list[Pair]:
        path = self._found(entry)
        if path is None:
            raise NotFound(
                f"{self.file}: its {split} images are not in {self._places(entry)[0]}: correct "
                f"`{split}` there, or give the folder of the labels as --data"
            )
        if path.is_dir():
            images = images_below(path)
        elif path.suffix.lower() == ".txt":
            images = self._listed(path)
        else:
            images = [path]
        return [Pair(image, _beside(image)) for image in images]

    def _listed(self, file: Path) -> list[Path]:
        """Read a file with the path of an image on each line."""
        try:
            lines = text_of(file.read_bytes()).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{file} is no list of images ({error})") from error
        found = []
        for number, line in enumerate(lines, 1):
            if not (text := line.strip()):
                continue
            places = [file.parent / text, *self._places(text)]
            image = next(filter(is_image, places), None)
            if image is None:
                raise NotFound(f"{file}, line {number}: there is no image {places[0]}")
            found.append(image)
        return found

    def _found(self, entry: str) -> Path | None:
        return next(filter(Path.exists, self._places(entry)), None)

    def _places(self, entry: str) -> list[Path]:
        """List where an entry may be, the likeliest first."""
        # Windows writes "valid\\images", and Roboflow "../valid/images" of a folder beside it.
        plain = entry.replace("\\", "/")
        below = plain
        while below.startswith(("./", "../")):
            below = below.partition("/")[2]
        parent = self.file.parent
        # `path` may be one of another machine.
        root = parent / str(self.document.get("path", "")).replace("\\", "/")
        roots = [root, parent] if root.is_dir() else [parent]
        return [place / each for each in (plain, below) for place in roots]


def labels_of(images: Path) -> Path:
    """Return the folder of the labels of images: as YOLO has it, `labels` for `images`."""
    return swapped(images, "images", "labels")


def paired(image: Path, images: Path, labels: Path) -> Path:
    """Return the file of an image's labels, which has the same place in another folder."""
    return labels / image.relative_to(images).with_suffix(".txt")


def swapped(folder: Path, name: str, other: str) -> Path:
    """Replace the last part of a path that has this name; YOLO finds labels of images so."""
    parts = list(folder.absolute().parts)
    if name not in parts:
        return folder
    parts[len(parts) - 1 - parts[::-1].index(name)] = other
    return Path(*parts)


def _beside(image: Path) -> Path:
    """Return the file of an image's labels: in `labels` in place of `images`, or beside it."""
    beside = image.with_suffix(".txt")
    usual = labels_of(image.parent) / beside.name
    return beside if beside.is_file() and not usual.is_file() else usual
