"""Reads labels in COCO's format: one JSON file of images, annotations and categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from fovea_engines.evaluation.labelled_image import LabelledImage, Outline, check_box
from fovea_engines.repository.files import text_of
from fovea_preprocess.errors import InvalidOption, NotFound

# A side in pixels, or an area in square pixels. Larger values occur only in damaged files, and
# would overflow float32.
_Size = Annotated[FiniteFloat, Field(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True)
class _Image:
    id: int
    file_name: str
    width: PositiveInt
    height: PositiveInt


@dataclass(frozen=True, slots=True)
class _RunLengths:
    size: tuple[PositiveInt, PositiveInt]
    counts: str | list[NonNegativeInt]


@dataclass(frozen=True, slots=True)
class _Annotation:
    image_id: int
    category_id: int
    bbox: tuple[FiniteFloat, FiniteFloat, _Size, _Size]
    area: _Size | None = None
    iscrowd: bool = False
    segmentation: list[list[FiniteFloat]] | _RunLengths | None = None
    keypoints: list[FiniteFloat] | None = None


@dataclass(frozen=True, slots=True)
class _Category:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class _File:
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


_ADAPTER = TypeAdapter(_File)


def read_coco(data: Path, folder: Path) -> tuple[list[LabelledImage], tuple[str, ...]]:
    """Read a COCO file.

    Args:
        data: the JSON file.
        folder: directory of the images. The file names in the JSON file are relative to it.

    Returns:
        The images in the file's order, and the names of the categories. A class id is the index of
            a category in the order of the category ids. Category ids may have gaps: COCO's 80
            categories have ids from 1 to 90.

    Raises:
        InvalidOption: the file is malformed. The message names the place in the file.
        NotFound: the file or an image is missing.
    """
    file = _parse(data)
    _refuse_twins(data, "images", (image.id for image in file.images))
    _refuse_twins(data, "categories", (category.id for category in file.categories))
    categories = _sort_by_id(file.categories)
    class_ids = {category.id: index for index, category in enumerate(categories)}
    by_image: dict[int, list[_Annotation]] = {image.id: [] for image in file.images}
    sizes = {image.id: (image.width, image.height) for image in file.images}
    points = _points(data, file.annotations)
    for index, annotation in enumerate(file.annotations):
        where = f"{data}, annotations.{index}"
        if annotation.image_id not in sizes:
            raise InvalidOption(f"{where}: image_id {annotation.image_id} is not in `images`")
        if annotation.category_id not in class_ids:
            raise InvalidOption(
                f"{where}: category_id {annotation.category_id} is not in `categories`"
            )
        check_box(where, _corners(annotation), *sizes[annotation.image_id])
        by_image[annotation.image_id].append(annotation)
    images = []
    for index, image in enumerate(file.images):
        path = folder / image.file_name
        if not path.is_file():
            missing = sum(not (folder / each.file_name).is_file() for each in file.images)
            raise NotFound(
                f"{data}, images.{index}: the image {path} does not exist, and {missing} of "
                f"{len(file.images)} labelled images are missing in all: give the folder of all "
                "labelled images with --images"
            )
        images.append(_make_labelled(path, image, by_image[image.id], class_ids, points))
    return images, tuple(category.name for category in categories)


def coco_class_names(data: Path) -> tuple[str, ...]:
    """Return the names of a COCO file's categories by class id. `read_coco` lists the errors."""
    return tuple(category.name for category in _sort_by_id(_parse(data).categories))


def _sort_by_id(categories: Iterable[_Category]) -> list[_Category]:
    return sorted(categories, key=lambda category: category.id)


def _parse(data: Path) -> _File:
    try:
        return _ADAPTER.validate_json(text_of(data.read_bytes()))
    except OSError as error:
        raise NotFound(f"{data} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{data} is not a COCO file: it is not UTF-8 text") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *place, key = map(str, first["loc"] or ("the whole",))
        if first["type"] == "missing":
            reason = f"the key {key} is missing"
        else:
            place, reason = [*place, key], first["msg"]
        where = f"{data}, {'.'.join(place)}" if place else f"{data}"
        raise InvalidOption(
            f"{where}: {reason}; labels must be a COCO JSON file of boxes, or a "
            "folder of YOLO label files"
        ) from error


def _refuse_twins(data: Path, what: str, ids: Iterable[int]) -> None:
    [(most, times)] = Counter(ids).most_common(1) or [(0, 0)]
    if times > 1:
        raise InvalidOption(
            f"{data}, {what}: {times} entries have the id {most}: give each its own id"
        )


def _points(data: Path, annotations: Iterable[_Annotation]) -> int:
    """Return the number of keypoints per object. It is the same for all objects with keypoints."""
    lengths = {len(a.keypoints) for a in annotations if a.keypoints}
    if len(lengths) > 1 or any(length % 3 for length in lengths):
        raise InvalidOption(
            f"{data}: keypoints must be x, y and visibility of each point, with the same number "
            "of points for every object"
        )
    return lengths.pop() // 3 if lengths else 0


def _corners(annotation: _Annotation) -> tuple[float, float, float, float]:
    x, y, width, height = annotation.bbox
    return x, y, x + width, y + height


def _make_labelled(
    path: Path,
    image: _Image,
    annotations: list[_Annotation],
    class_ids: dict[int, int],
    points: int,
) -> LabelledImage:
    boxes = [_corners(annotation) for annotation in annotations]
    areas = [a.bbox[2] * a.bbox[3] if a.area is None else a.area for a in annotations]
    return LabelledImage(
        path=path,
        width=image.width,
        height=image.height,
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        class_ids=np.array([class_ids[a.category_id] for a in annotations], np.int32),
        crowd=np.array([a.iscrowd for a in annotations], np.bool_),
        areas=np.array(areas, np.float32),
        outlines=_outlines(annotations),
        keypoints=_keypoints(annotations, points),
    )


def _outlines(annotations: Sequence[_Annotation]) -> tuple[Outline, ...] | None:
    found = tuple(outline for a in annotations if (outline := _outline(a.segmentation)))
    return found if len(found) == len(annotations) else None


def _outline(marks: list[list[float]] | _RunLengths | None) -> Outline | None:
    if isinstance(marks, _RunLengths):
        return asdict(marks)
    # Drop invalid outlines, such as polygons with too few corners, instead of rejecting the file:
    # detectors do not need outlines.
    sound = marks and all(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in marks)
    return marks if sound else None


def _keypoints(annotations: Sequence[_Annotation], count: int) -> NDArray[np.float32] | None:
    """Return keypoints [n, count, 3]. The keypoints of an object without keypoints are zeros.

    If no object has keypoints, return None.
    """
    if not count:
        return None
    rows = [a.keypoints or [0.0] * 3 * count for a in annotations]
    return np.array(rows, np.float32).reshape(len(rows), count, 3)
