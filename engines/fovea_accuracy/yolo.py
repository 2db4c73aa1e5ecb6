"""Reads labels in YOLO's format: one text file per image, one line per object."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from fovea_accuracy.labelled_image import LabelledImage, check_box
from fovea_engines.detect.rotated import regular
from fovea_engines.evaluate.samples import image_files, read_image
from fovea_engines.repository.labels import read_labels
from fovea_preprocess.errors import InvalidOption, NotFound

# LabelImg, Label Studio and darknet leave this file among or above the label files.
CLASSES_FILE = "classes.txt"
# What of a data.yaml, or of a folder of labels, is evaluated: the first that is there.
_SPLITS = ("val", "test", "train")

# Values are 0 to 1, but rounding puts some slightly outside.
_ROUNDING = 1e-3
_MOST_CLASSES = 1_000_000
# Words of a line that has no polygon: class cx cy w h.
_BOX = 5

Outline = NDArray[np.float64]


class _Row(NamedTuple):
    """A line; corners and keypoints are in pixels, and `drawn` is True for a polygon."""

    class_id: int
    outline: Outline
    drawn: bool
    keypoints: NDArray[np.float64]


def read_yolo(
    data: Path, folder: Path | None
) -> tuple[list[LabelledImage], tuple[str, ...] | None]:
    """Read a folder of YOLO label files, one that holds it as `labels`, or a data.yaml.

    A line is ``class cx cy w h``, or ``class x y x y x y ...`` for a polygon, which is reduced to
    its box, and for models of rotated boxes to the smallest rectangle around it. Or each line is
    ``class cx cy w h x y v x y v ...`` with as many keypoints, whose v is COCO's visibility.
    Coordinates are 0 to 1 of the upright image. An image without a label file, or with an empty
    one, has no objects. The images are by default in `images` in place of `labels` in the path, as
    for YOLO itself, or beside the labels.

    Returns the images by name, and the names in the data.yaml, or in classes.txt if it exists.
    """
    labels, beside = _folders(data)
    folder = beside if folder is None else folder
    files = {p.stem: p for p in sorted(labels.glob("*.txt")) if p.name != CLASSES_FILE}
    if not files:
        raise NotFound(f"{labels} has no YOLO label file (*.txt): name the folder that has them")
    names = yolo_class_names(data)
    images = image_files(folder, sys.maxsize)
    if orphans := sorted(files.keys() - {image.stem for image in images}):
        raise NotFound(
            f"{files[orphans[0]]}: there is no image {folder / orphans[0]}.jpg (or .png ...): "
            "name the folder of the images with --images"
        )
    known = None if names is None else len(names)
    points = _keypoints_of_each(files.values())
    return [_labelled(image, files.get(image.stem), known, points) for image in images], names


def _folders(data: Path) -> tuple[Path, Path]:
    """Return the folders of the label files and of the images."""
    if is_yaml(data):
        document = _document(data)
        root = data.parent / str(document.get("path") or "")
        # As YOLO's own programs do, where the path is one of another machine.
        root = root if root.is_dir() else data.parent
        split = next((name for name in _SPLITS if document.get(name)), None)
        if split is None or not isinstance(document[split], str):
            raise InvalidOption(f"{data} names no folder of images as {', '.join(_SPLITS)}")
        images = root / document[split]
        if not images.is_dir():
            raise NotFound(
                f"{data}: its {split} images are not in {images}; --data LABELS names them"
            )
        return _swapped(images, "images", "labels"), images
    labels = data / "labels" if (data / "labels").is_dir() else data
    if not any(labels.glob("*.txt")):
        labels = next((labels / name for name in _SPLITS if (labels / name).is_dir()), labels)
    return labels, _swapped(labels, "labels", "images")


def is_yaml(data: Path) -> bool:
    """Return True for a data.yaml, as YOLO is trained with."""
    return data.suffix.lower() in (".yaml", ".yml")


def _document(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidOption(f"{file} cannot be read as YAML: {error}") from None
    if not isinstance(document, dict):
        raise InvalidOption(f"{file} is no data.yaml: it has no `val` and `names`")
    return document


def yolo_class_names(data: Path) -> tuple[str, ...] | None:
    """Return the class names of YOLO labels; None where nothing names them."""
    if is_yaml(data):
        names = _document(data).get("names")
        if isinstance(names, dict):
            names = [names.get(number) for number in range(len(names))]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidOption(f"{data}: `names` is no list of class names")
        return tuple(names)
    files = (data / "labels" / CLASSES_FILE, data / CLASSES_FILE)
    file = next((file for file in files if file.is_file()), None)
    return None if file is None else read_labels(file)


def _swapped(folder: Path, name: str, other: str) -> Path:
    """Replace the last part of a path that has this name; YOLO finds labels of images so."""
    parts = list(folder.absolute().parts)
    if name not in parts:
        return folder
    parts[len(parts) - 1 - parts[::-1].index(name)] = other
    return Path(*parts)


def _keypoints_of_each(files: Iterable[Path]) -> int:
    """Return the number of keypoints on every line of files; 0 for boxes and polygons.

    All lines decide, as one polygon may look like a box and keypoints by chance.
    """
    lines = (line.split() for file in files for line in _lines(file))
    counts = {_keypoints_on(words) for words in lines if words}
    return counts.pop() if len(counts) == 1 else 0


def _keypoints_on(words: list[str]) -> int:
    try:
        numbers = [float(word) for word in words[_BOX:]]
    except ValueError:
        return 0
    visibilities = numbers[2::3]
    complete = len(numbers) % 3 == 0 and {0, 1, 2}.issuperset(visibilities)
    return len(visibilities) if complete else 0


def _labelled(
    image: Path, file: Path | None, num_classes: int | None, points: int
) -> LabelledImage:
    # Only decoding shows the size of the upright image.
    height, width, _ = read_image(image).shape
    rows = [] if file is None else _read_rows(file, width, height, num_classes, points)
    shapes = [row.outline for row in rows]
    boxes = np.array([_around(shape) for shape in shapes], np.float32).reshape(-1, 4)
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
        return file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{file} is not a text file of YOLO labels ({error})") from error


def _read_rows(
    file: Path, width: int, height: int, num_classes: int | None, points: int
) -> list[_Row]:
    rows = []
    for number, line in enumerate(_lines(file), start=1):
        if not (words := line.split()):
            continue
        where = f"{file}, line {number}"
        class_id = _class_id(where, words[0], num_classes)
        end = _BOX if points else len(words)
        outline = _outline(where, words[1:end]) * [width, height]
        check_box(where, _around(outline), width, height)
        keypoints = np.array(words[end:], np.float64).reshape(-1, 3)
        _check_shares(where, keypoints[:, :2].ravel().tolist(), words[end:])
        rows.append(_Row(class_id, outline, end > _BOX, keypoints * [width, height, 1]))
    return rows


def _class_id(where: str, word: str, num_classes: int | None) -> int:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not value.is_integer() or not 0 <= value < _MOST_CLASSES:
        raise InvalidOption(f"{where}: {word!r} is not a class id, a whole number from 0 up")
    if num_classes is not None and value >= num_classes:
        raise InvalidOption(
            f"{where}: there is no class {word}, only 0 to {num_classes - 1} in {CLASSES_FILE}"
        )
    return int(value)


def _outline(where: str, words: list[str]) -> Outline:
    """Return the corners, 0 to 1, of a box or a polygon, float64 [n, 2]."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise InvalidOption(
            f"{where}: after the class come 4 numbers of a box, cx cy w h, or x y of 3 or more "
            "corners of a polygon, or on every line a box and x y v of as many keypoints, not "
            f"{' '.join(words) or 'nothing'!r}"
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
            f"{where}: coordinates are 0 to 1 of the image's width and height, not "
            f"{' '.join(words)!r}: divide pixels by the image's size"
        )


def _around(outline: Outline) -> tuple[float, float, float, float]:
    (x1, y1), (x2, y2) = outline.min(axis=0).tolist(), outline.max(axis=0).tolist()
    return x1, y1, x2, y2


def _smallest(outline: Outline) -> tuple[float, float, float, float, float]:
    """Return cx cy w h angle of the smallest rectangle around an outline."""
    (cx, cy), (width, height), degrees = cv2.minAreaRect(outline.astype(np.float32))
    return cx, cy, width, height, math.radians(degrees)
