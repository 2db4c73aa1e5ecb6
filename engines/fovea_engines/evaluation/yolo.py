"""Reads labels in YOLO's format: one text file per image, one line per object."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from fovea_engines.evaluation.labelled_image import LabelledImage, check_box
from fovea_engines.evaluation.samples import images_below, is_hidden, is_image, read_image
from fovea_engines.repository.files import text_of
from fovea_engines.repository.labels import read_labels
from fovea_engines.results.rotated import regular
from fovea_preprocess.errors import InvalidOption, NotFound

DATA_YAML = "data.yaml"
SPLITS = ("val", "valid", "validation", "test", "train")
"""Names of splits. The first of these names that a data.yaml contains is measured."""

_NOTHING = ("", "~", "null", "Null", "NULL")

# Name of the file of class names. LabelImg, Label Studio and darknet write it into the directory of
# the label files, or into the directory above.
CLASSES_FILE = "classes.txt"
# Tolerance for coordinates below 0 or above 1, because of rounding.
_ROUNDING = 1e-3
_MAX_CLASSES = 1_000_000
# Number of words on a line for a box: class cx cy w h.
_BOX = 5

Outline = NDArray[np.float64]


class Pair(NamedTuple):
    """An image, and the path of its label file, which may be missing."""

    image: Path
    labels: Path


@dataclass(frozen=True, slots=True)
class DataYaml:
    """A data.yaml. All its scalars are read as texts: YAML would read a class "no" as False."""

    file: Path
    document: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> DataYaml:
        """Read a data.yaml.

        Raises:
            InvalidOption: the file cannot be read, or is not a mapping.
        """
        try:
            # `BaseLoader` returns only texts, lists and dicts. It does not convert texts to
            # numbers.
            document = yaml.load(text_of(file.read_bytes()), Loader=yaml.BaseLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidOption(f"{file} cannot be read as YAML: {error}") from None
        if not isinstance(document, dict):
            raise InvalidOption(
                f"{file} is not a data.yaml file: it must have the keys `val` and `names`"
            )
        return cls(file, document)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The class names by id; None without names. The name of an unnamed class is its id."""
        names = self.document.get("names", "")
        if names in _NOTHING:
            return None
        if isinstance(names, dict) and names and all(str(each).isdecimal() for each in names):
            by_id = {int(number): name for number, name in names.items()}
            names = [by_id.get(number, str(number)) for number in range(max(by_id) + 1)]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidOption(f"{self.file}: `names` must be a list of class names")
        return tuple(names)

    @property
    def split(self) -> str:
        """The name of the split that is measured."""
        for name in SPLITS:
            if self.document.get(name) not in (None, [], *_NOTHING):
                return name
        raise InvalidOption(f"{self.file} has no folder of images: set {', '.join(SPLITS)}")

    def pairs(self, folder: Path | None) -> list[Pair]:
        """List the images of the split with their label files.

        Args:
            folder: directory of the images. None means the directory that the file contains.

        Raises:
            InvalidOption: the file does not describe a list of images.
            NotFound: the images are missing.
        """
        split = self.split
        entries = self.document[split]
        entries = [entries] if isinstance(entries, str) else entries
        if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
            raise InvalidOption(
                f"{self.file}: `{split}` must be a folder, a .txt file that lists images, or a "
                "list of these"
            )
        if folder is not None:
            return self._pair_moved(split, entries, folder)
        pairs = [pair for entry in entries for pair in self._pair_entry(split, entry)]
        # Measure an image once, even if the file lists it twice.
        return list({pair.image: pair for pair in pairs}.values())

    def _pair_moved(self, split: str, entries: list[str], folder: Path) -> list[Pair]:
        """Pair the images in `folder` with the labels of the directories that the file contains."""
        if len(entries) > 1 or entries[0].endswith(".txt"):
            raise InvalidOption(
                f"{self.file} lists more than one folder as `{split}`: leave --images out, or "
                "give the folder of the labels as --data"
            )
        named = [labels_of(place) for place in self._places(entries[0])]
        labels = next(filter(Path.is_dir, named), named[0])
        return [Pair(image, label_file(image, folder, labels)) for image in images_below(folder)]

    def _pair_entry(self, split: str, entry: str) -> list[Pair]:
        path = self._find_entry(entry)
        if path is None:
            raise NotFound(
                f"{self.file}: its {split} images are not in {self._places(entry)[0]}: correct "
                f"`{split}` in the file, or give the folder of the labels as --data"
            )
        if path.is_dir():
            images = images_below(path)
        elif path.suffix.lower() == ".txt":
            images = self._read_list(path)
        else:
            images = [path]
        return [Pair(image, _find_label_file(image)) for image in images]

    def _read_list(self, file: Path) -> list[Path]:
        """Read a file with the path of an image on each line."""
        try:
            lines = text_of(file.read_bytes()).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{file} is not a list of images ({error})") from error
        found = []
        for number, line in enumerate(lines, 1):
            if not (text := line.strip()):
                continue
            places = [file.parent / text, *self._places(text)]
            image = next(filter(is_image, places), None)
            if image is None:
                raise NotFound(f"{file}, line {number}: the image {places[0]} does not exist")
            found.append(image)
        return found

    def _find_entry(self, entry: str) -> Path | None:
        return next(filter(Path.exists, self._places(entry)), None)

    def _places(self, entry: str) -> list[Path]:
        """List the paths that an entry of the file may mean, the most probable path first."""
        # A file from Windows may contain "valid\\images". A file from Roboflow contains
        # "../valid/images", although the directory is beside the file.
        plain = entry.replace("\\", "/")
        below = plain
        while below.startswith(("./", "../")):
            below = below.partition("/")[2]
        parent = self.file.parent
        # The entry `path` may be a path on another machine.
        root = parent / str(self.document.get("path", "")).replace("\\", "/")
        roots = [root, parent] if root.is_dir() else [parent]
        return [place / each for each in (plain, below) for place in roots]


def labels_of(images: Path) -> Path:
    """Return the directory of the labels for a directory of images.

    As in YOLO, the part `images` of the path is replaced by `labels`.
    """
    return replace_part(images, "images", "labels")


def label_file(image: Path, images: Path, labels: Path) -> Path:
    """Return the label file of an image. It has the same relative path in the labels' directory."""
    return labels / image.relative_to(images).with_suffix(".txt")


def replace_part(folder: Path, name: str, other: str) -> Path:
    """Replace the last part of a path that has this name. YOLO finds label files in this way."""
    parts = list(folder.absolute().parts)
    if name not in parts:
        return folder
    parts[len(parts) - 1 - parts[::-1].index(name)] = other
    return Path(*parts)


def _find_label_file(image: Path) -> Path:
    """Return the label file of an image.

    It is in the directory `labels` in place of `images`, or beside the image.
    """
    beside = image.with_suffix(".txt")
    usual = labels_of(image.parent) / beside.name
    return beside if beside.is_file() and not usual.is_file() else usual


class YoloLabels(NamedTuple):
    """Labelled images, their class names (None without names), and the name of their split."""

    images: list[LabelledImage]
    names: tuple[str, ...] | None
    split: str | None


class _Row(NamedTuple):
    """A labelled object in pixels. `drawn` is True if the label is a polygon."""

    class_id: int
    outline: Outline
    drawn: bool
    keypoints: NDArray[np.float64]


def read_yolo(data: Path, folder: Path | None) -> YoloLabels:
    """Read a directory of YOLO label files, a directory that contains `labels`, or a data.yaml.

    A line has one of three forms. Coordinates are fractions of the upright image's width and
    height, 0 to 1.

    - ``class cx cy w h`` is a box.
    - ``class x y x y x y ...`` is a polygon. It is reduced to its upright box, or for models of
      rotated boxes to the smallest rectangle around it.
    - ``class cx cy w h x y v x y v ...`` is a box with keypoints. All lines have the same number of
      keypoints. v is COCO's visibility.

    An image without a label file, or with an empty label file, has no objects. By default, images
    are beside the label files, or in the directory `images` in place of `labels`, as in YOLO.
    Subdirectories are also read.

    Raises:
        InvalidOption: the labels are malformed. The message names the file and the line.
        NotFound: labels or an image are missing.
    """
    split: str | None
    if is_yaml(data) or is_dataset(data):
        described = DataYaml.read(data if is_yaml(data) else data / DATA_YAML)
        pairs, split = described.pairs(folder), described.split
    else:
        pairs, split = _pair_folders(data, folder)
    files = {image: file for image, file in pairs if file.is_file()}
    if not files:
        raise NotFound(
            f"{data}: none of its {len(pairs)} images has a YOLO label file, such as "
            f"{pairs[0].labels}: give the folder of the label files"
        )
    names = yolo_class_names(data)
    points = _count_keypoints(files.values())
    images = [_read_labelled(image, files.get(image), names, points) for image, _ in pairs]
    return YoloLabels(images, names, split)


def is_yaml(data: Path) -> bool:
    """Return whether the path is a YAML file, such as YOLO's data.yaml."""
    return data.suffix.lower() in (".yaml", ".yml")


def is_dataset(data: Path) -> bool:
    """Return whether a directory contains a data.yaml with splits, as in Roboflow's exports."""
    return (data / DATA_YAML).is_file() and not (data / "labels").is_dir()


def yolo_class_names(data: Path) -> tuple[str, ...] | None:
    """Return the class names of YOLO labels. Without names, return None."""
    if is_yaml(data):
        if (names := DataYaml.read(data).names) is None:
            raise InvalidOption(f"{data}: `names` must be a list of class names")
        return names
    files = (data / "labels" / CLASSES_FILE, data / CLASSES_FILE)
    if (file := next(filter(Path.is_file, files), None)) is not None:
        return read_labels(file)
    described = data / DATA_YAML
    return DataYaml.read(described).names if described.is_file() else None


def _pair_folders(data: Path, folder: Path | None) -> tuple[list[Pair], str | None]:
    """Pair images with their label files. Also return the name of the split, or None."""
    labels, split = data / "labels" if (data / "labels").is_dir() else data, None
    if not any(labels.glob("[!.]*.txt")) and (found := _find_split(labels)) is not None:
        labels, split = found, found.name
        labels = labels / "labels" if (labels / "labels").is_dir() else labels
    files = {
        path.relative_to(labels).with_suffix("")
        for path in labels.rglob("*.txt")
        if path.name != CLASSES_FILE and not is_hidden(path, labels)
    }
    if not files:
        raise NotFound(
            f"{labels} has no YOLO label file (*.txt): give the folder of the label files"
        )
    folder = replace_part(labels, "labels", "images") if folder is None else folder
    pairs = [Pair(image, label_file(image, folder, labels)) for image in images_below(folder)]
    known = {pair.labels for pair in pairs}
    for name in sorted(files):
        if (file := labels / f"{name}.txt") not in known:
            raise NotFound(
                f"{file}: the image {folder / name}.jpg (or .png ...) does not exist: give the "
                "folder of the images with --images"
            )
    return pairs, split


def _find_split(labels: Path) -> Path | None:
    """Return the directory of the measured split, such as val or val2017.

    If there are no splits, return None.
    """
    named = {path.name.rstrip("0123456789"): path for path in labels.glob("*") if path.is_dir()}
    return next((named[name] for name in SPLITS if name in named), None)


def _count_keypoints(files: Iterable[Path]) -> int:
    """Return the number of keypoints per line. For boxes and polygons, return 0.

    The function reads all lines, because a single polygon may by chance look like a box with
    keypoints.
    """
    lines = (line.split() for file in files for line in _lines(file))
    counts = {_count_on_line(words) for words in lines if words}
    return counts.pop() if len(counts) == 1 else 0


def _count_on_line(words: list[str]) -> int:
    try:
        numbers = [float(word) for word in words[_BOX:]]
    except ValueError:
        return 0
    visibilities = numbers[2::3]
    complete = len(numbers) % 3 == 0 and {0, 1, 2}.issuperset(visibilities)
    return len(visibilities) if complete else 0


def _read_labelled(
    image: Path, file: Path | None, names: Sequence[str] | None, points: int
) -> LabelledImage:
    # Decode the image to get its size after the EXIF rotation. The header has the size before it.
    height, width, _ = read_image(image).shape
    rows = [] if file is None else _read_rows(file, width, height, names, points)
    shapes = [row.outline for row in rows]
    boxes = np.array([_bound(shape) for shape in shapes], np.float32).reshape(-1, 4)
    polygons = tuple([row.outline.ravel().tolist()] for row in rows if row.drawn)
    marked = np.array([row.keypoints for row in rows], np.float32).reshape(len(rows), points, 3)
    return LabelledImage(
        path=image,
        width=width,
        height=height,
        boxes=boxes,
        class_ids=np.array([row.class_id for row in rows], np.int32),
        crowd=np.zeros(len(rows), np.bool_),
        areas=(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
        rotated=regular(np.array([_smallest(one) for one in shapes]).reshape(-1, 5)),
        outlines=polygons if len(polygons) == len(rows) else None,
        keypoints=marked if points else None,
    )


def _lines(file: Path) -> list[str]:
    try:
        return text_of(file.read_bytes()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{file} is not a text file of YOLO labels ({error})") from error


def _read_rows(
    file: Path, width: int, height: int, names: Sequence[str] | None, points: int
) -> list[_Row]:
    rows = []
    for number, line in enumerate(_lines(file), start=1):
        if not (words := line.split()):
            continue
        where = f"{file}, line {number}"
        class_id = _class_id(where, words[0], names)
        end = _BOX if points else len(words)
        outline = _outline(where, words[1:end]) * [width, height]
        check_box(where, _bound(outline), width, height)
        keypoints = np.array(words[end:], np.float64).reshape(-1, 3)
        _check_shares(where, keypoints[:, :2].ravel().tolist(), words[end:])
        rows.append(_Row(class_id, outline, end > _BOX, keypoints * [width, height, 1]))
    return rows


def _class_id(where: str, word: str, names: Sequence[str] | None) -> int:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not value.is_integer() or not 0 <= value < _MAX_CLASSES:
        raise InvalidOption(
            f"{where}: {word!r} is not a class id: write a whole number of 0 or more"
        )
    if names is not None and value >= len(names):
        raise InvalidOption(
            f"{where}: unknown class {word}; only 0 to {len(names) - 1} have names in "
            f"{CLASSES_FILE} or {DATA_YAML}"
        )
    return int(value)


def _outline(where: str, words: list[str]) -> Outline:
    """Return the corners of a box or a polygon, float64 [n, 2], as fractions of 0 to 1."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise InvalidOption(
            f"{where}: the class must be followed by a box (cx cy w h), a polygon (x y of 3 or "
            "more corners), or a box and x y v of each keypoint (each line needs the same number "
            f"of keypoints), not by {' '.join(words) or 'nothing'!r}"
        )
    _check_shares(where, values, words)
    if len(values) > 4:
        return np.array(values).reshape(-1, 2)
    cx, cy, width, height = values
    x1, y1, x2, y2 = cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2
    return np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)])


def _check_shares(where: str, values: list[float], words: list[str]) -> None:
    if not all(-_ROUNDING <= value <= 1 + _ROUNDING for value in values):
        raise InvalidOption(
            f"{where}: coordinates must be fractions of the image's width and height, from 0 to "
            f"1, not {' '.join(words)!r}: divide pixels by the image's size"
        )


def _bound(outline: Outline) -> tuple[float, float, float, float]:
    (x1, y1), (x2, y2) = outline.min(axis=0).tolist(), outline.max(axis=0).tolist()
    return x1, y1, x2, y2


def _smallest(outline: Outline) -> tuple[float, float, float, float, float]:
    """Return cx cy w h angle of the smallest rectangle around an outline."""
    (cx, cy), (width, height), degrees = cv2.minAreaRect(outline.astype(np.float32))
    return cx, cy, width, height, math.radians(degrees)
