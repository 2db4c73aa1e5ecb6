"""Reads labels of every task, and measures an engine on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fovea_engines.engine import Engine
from fovea_engines.evaluation.class_folders import (
    ClassFolders,
    classify_with,
    embed_with,
    measure_classes,
    measure_matches,
    read_class_folders,
)
from fovea_engines.evaluation.class_maps import (
    ClassMaps,
    holds_maps,
    measure_maps,
    pairs_of,
    read_class_maps,
    segment_with,
)
from fovea_engines.evaluation.dataset import Dataset, read_dataset
from fovea_engines.evaluation.dataset import read_class_names as read_class_names
from fovea_engines.evaluation.evaluate import EVALUATION, evaluate, in_process
from fovea_engines.evaluation.label_tables import SUFFIXES, judge_with, read_table, read_with
from fovea_engines.evaluation.label_tables import AttributeLabels as AttributeLabels
from fovea_engines.evaluation.label_tables import Judged as Judged
from fovea_engines.evaluation.label_tables import TextLabels as TextLabels
from fovea_engines.evaluation.samples import Pixels, has_images, image_files, read_image
from fovea_engines.evaluation.yolo import is_dataset
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AnyAccuracy, PictureAccuracy
from fovea_engines.repository.files import file_sha256, json_sha256
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted

MAX_PSNR: Final = 100.0
"""Stands for the ratio of pictures that are equal, which is infinite."""

# Of Wang et al. 2004, whose window is 11 pixels wide.
_RADIUS, _SIGMA = 5, 1.5
_WHITE = 255
_STABLE = (0.01 * _WHITE) ** 2, (0.03 * _WHITE) ** 2

Floats = NDArray[np.float64]
Paint = Callable[[Path], Pixels]
"""Makes the picture of an image, [h, w, 3] RGB, or [h, w] of a grey one."""


@dataclass(frozen=True, slots=True, eq=False)
class PicturePairs:
    """Images, each with the picture that a network should make of it."""

    path: Path
    images: tuple[tuple[Path, Path], ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return tuple(image for image, _ in self.images)

    def only(self, paths: Container[Path]) -> Self:
        """Return the part with these images."""
        return replace(self, images=tuple(each for each in self.images if each[0] in paths))

    def for_model(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return itself: pictures have no classes."""
        return self

    def sha256(self) -> str:
        """Return a hex digest of all images and pictures."""
        return json_sha256(
            [(path.name, file_sha256(path)) for each in self.images for path in each]
        )

    def measure(self, paint: Paint, progress: Progress | None = None) -> PictureAccuracy:
        """Measure how close the pictures are, in RGB; InvalidOption where sizes differ."""
        progress = progress or Progress()
        figures = []
        with progress.phase("accuracy"):
            for image, file in progress.each(self.images, len(self.images)):
                wanted, found = read_image(file), paint(image)
                if wanted.shape[:2] != found.shape[:2]:
                    sizes = (f"{h}x{w}" for h, w, *_ in (wanted.shape, found.shape))
                    raise InvalidOption(
                        f"{file} is {next(sizes)}, and what the model makes of {image} is "
                        f"{next(sizes)} (height x width): they must be as large"
                    )
                found = np.broadcast_to(found.reshape(*found.shape[:2], -1), wanted.shape)
                figures.append((psnr(wanted, found), ssim(wanted, found)))
        ratio, alike = np.mean(figures, axis=0).tolist()
        return PictureAccuracy(len(figures), alike, ratio)


def holds_pictures(data: Path, images: Path | None) -> bool:
    """Return whether a folder has pictures in colours, or JPEG files, beside that of the images.

    PNG files of one level or index a pixel are maps of classes.
    """
    folder = data.parent / "images" if images is None else images
    if not has_images(data) or not folder.is_dir() or folder.resolve() == data.resolve():
        return False
    [first] = image_files(data, 1)
    try:
        with Image.open(first) as image:
            return first.suffix.lower() != ".png" or image.mode.startswith("RGB")
    except (OSError, UnidentifiedImageError):
        return False


def read_pictures(data: Path, images: Path | None = None) -> PicturePairs:
    """Read a folder of pictures; the images are found as those of maps are."""
    return PicturePairs(data, pairs_of(data, image_files(data, sys.maxsize), images))


def paint_with(engine: Engine) -> Paint:
    """Return a function that makes pictures with an engine."""

    def paint(image: Path) -> Pixels:
        found = engine.predict(read_image(image))
        assert isinstance(found, NewImage), "the task was checked"
        return found.rgb

    return paint


def psnr(want: Pixels, have: Pixels) -> float:
    """Return the peak signal-to-noise ratio of two pictures, dB, `MAX_PSNR` at most."""
    error = float(np.square(want.astype(np.float64) - have).mean())
    return min(MAX_PSNR, 10 * float(np.log10(_WHITE**2 / error))) if error else MAX_PSNR


def ssim(want: Pixels, have: Pixels) -> float:
    """Return the structural similarity of two pictures, [h, w, c]: the mean of their channels.

    It is that of Wang et al. 2004 (doi 10.1109/TIP.2003.819861) in windows that lie inside.
    """
    if min(want.shape[:2]) <= 2 * _RADIUS:
        raise InvalidOption(f"a picture has {2 * _RADIUS + 1} pixels a side or more to be compared")
    x, y = want.astype(np.float64), have.astype(np.float64)
    mean_x, mean_y = _mean(x), _mean(y)
    spread = _mean(x * x) - mean_x**2 + _mean(y * y) - mean_y**2
    shared = _mean(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + _STABLE[0]) / (mean_x**2 + mean_y**2 + _STABLE[0])
    return float((light * (2 * shared + _STABLE[1]) / (spread + _STABLE[1])).mean())


def _mean(values: Floats) -> Floats:
    """Return the mean under a Gaussian window, for each that lies inside."""
    side = 2 * _RADIUS + 1
    blurred = np.asarray(cv2.GaussianBlur(values, (side, side), _SIGMA), np.float64)
    return blurred[_RADIUS:-_RADIUS, _RADIUS:-_RADIUS]


Labels = Dataset | ClassFolders | ClassMaps | TextLabels | AttributeLabels | PicturePairs
"""Each kind is of one task, or of those that find objects, or compare whole images."""

_KINDS: Final = {
    Dataset: ("labels of objects", "a COCO file, or a folder of YOLO labels"),
    ClassFolders: (
        "a folder of images for each class",
        "a folder that has a folder of images for each class, or person or thing",
    ),
    ClassMaps: (
        "PNG files of classes",
        "a folder of PNG files, whose levels are the classes of the pixels",
    ),
    TextLabels: (
        "texts",
        "a .txt file with a line for each image, its path, a tab and its text, or a .csv file with "
        "the columns image,text",
    ),
    AttributeLabels: (
        "a column for each attribute",
        "a CSV file with a column for the image and one for each attribute",
    ),
    PicturePairs: (
        "pictures",
        "a folder of the right pictures, in colours, with the names of the --images",
    ),
}
_OF_TASK: Final = {
    **dict.fromkeys(("detect", "segment", "pose", "obb", "text"), Dataset),
    **dict.fromkeys(("classify", "embed"), ClassFolders),
    "semantic": ClassMaps,
    "read": TextLabels,
    "attributes": AttributeLabels,
    "image": PicturePairs,
}


def read_labelled(data: Path, images: Path | None = None) -> Labels:
    """Read images in a folder for each class, maps, pictures, tables, or objects."""
    if data.is_file() and data.suffix in SUFFIXES:
        return read_table(data, images)
    if data.is_dir() and not (data / "labels").is_dir() and not is_dataset(data):
        if not any(data.glob("[!.]*.txt")) and (found := read_class_folders(data)) is not None:
            return found
        if holds_pictures(data, images):
            return read_pictures(data, images)
        if holds_maps(data):
            return read_class_maps(data, images)
    return read_dataset(data, images)


def described(labelled: Labels) -> str:
    """Return the number of measured images and the name of their split."""
    images = counted(len(labelled.paths), "image")
    split = split_of(labelled)
    return images if split is None else f"{images} of {split}"


def split_of(labelled: Labels) -> str | None:
    """Return the split of the images, as val; None where they have none."""
    return labelled.split if isinstance(labelled, Dataset) else None


def check_task(labelled: Labels, task: str) -> None:
    """Refuse, as InvalidOption, labels of another task than the model's, or one without any."""
    if (wanted := _OF_TASK.get(task)) is None:
        raise InvalidOption(
            f"the task of the model is {task}, and nothing measures its accuracy yet: there is "
            f"something for {', '.join(_OF_TASK)}"
        )
    if not isinstance(labelled, wanted):
        raise InvalidOption(
            f"{labelled.path} has {_KINDS[type(labelled)][0]}, and the task of the model is "
            f"{task}: give {_KINDS[wanted][1]}"
        )
    if task == "pose" and isinstance(labelled, Dataset) and labelled.path.is_dir():
        _check_visibility(labelled)


def _check_visibility(labelled: Dataset) -> None:
    """Refuse polygons of YOLO labels, which keypoints without visibility are read as."""
    drawn = [image.path.stem for image in labelled.images if image.outlines]
    if drawn and all(image.keypoints is None for image in labelled.images):
        raise InvalidOption(
            f"{labelled.path}: the labels of {drawn[0]} are polygons, or keypoints without "
            "visibility: for a pose model write x y v of each keypoint behind the box, v 0 where "
            "it is not marked, or the box alone"
        )


def measure(
    engine: Engine, labelled: Labels, progress: Progress, options: PredictOptions = EVALUATION
) -> AnyAccuracy:
    """Measure an engine whose classes are those of the labels; `options` are a detector's."""
    match labelled:
        case ClassFolders() if engine.card.task == "embed":
            return measure_matches(embed_with(engine), labelled, progress)[0]
        case ClassFolders():
            return measure_classes(classify_with(engine), labelled, progress)
        case ClassMaps():
            return measure_maps(segment_with(engine), labelled, progress)
        case TextLabels():
            return labelled.measure(read_with(engine), progress)
        case AttributeLabels():
            return labelled.measure(judge_with(engine), progress)
        case PicturePairs():
            return labelled.measure(paint_with(engine), progress)
        case Dataset():
            return evaluate(in_process(engine, options), labelled, progress)
