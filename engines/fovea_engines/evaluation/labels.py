"""Reads labels of every task, and measures an engine on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
    read_class_maps,
    segment_with,
)
from fovea_engines.evaluation.dataset import Dataset, read_dataset
from fovea_engines.evaluation.evaluate import EVALUATION, detect_with, evaluate
from fovea_engines.evaluation.label_tables import (
    SUFFIXES,
    AttributeLabels,
    TextLabels,
    judge_with,
    read_table,
    read_with,
)
from fovea_engines.evaluation.pictures import (
    PicturePairs,
    holds_pictures,
    paint_with,
    read_pictures,
)
from fovea_engines.evaluation.yolo import is_dataset
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted

Labels = Dataset | ClassFolders | ClassMaps | TextLabels | AttributeLabels | PicturePairs
"""All kinds of labels.

Some kinds are for one task. `Dataset` is for all tasks that find objects, and `ClassFolders` is for
classifiers and embeddings.
"""

_KINDS: Final = {
    Dataset: ("labels of objects", "a COCO file, or a folder of YOLO labels"),
    ClassFolders: (
        "a folder of images for each class",
        "a folder with one folder of images for each class, person or object",
    ),
    ClassMaps: (
        "PNG files with classes",
        "a folder of PNG files whose grey levels are the classes of the pixels",
    ),
    TextLabels: (
        "texts",
        "a .txt file with the path, a tab and the text of each image, one per line, or a .csv "
        "file with the columns image,text",
    ),
    AttributeLabels: (
        "a column for each attribute",
        "a CSV file with one column for the image and one for each attribute",
    ),
    PicturePairs: (
        "pictures",
        "a folder of the expected colour images, with the same names as the files in --images",
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
    """Read labels of any kind. The files and directories determine the kind.

    Args:
        data: file or directory of the labels.
        images: directory of the images; None for the default directory of this kind of labels.
    """
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


def images_text(labelled: Labels) -> str:
    """Return the number of measured images and the name of their split, as text."""
    images = counted(len(labelled.paths), "image")
    split = split_of(labelled)
    return images if split is None else f"{images} of {split}"


def split_of(labelled: Labels) -> str | None:
    """Return the name of the images' split, such as val. If there are no splits, return None."""
    return labelled.split if isinstance(labelled, Dataset) else None


def check_task(labelled: Labels, task: str) -> None:
    """Check that labels are for the model's task.

    Raises:
        InvalidOption: the labels are for another task, or Fovea cannot measure this task.
    """
    if (wanted := _OF_TASK.get(task)) is None:
        raise InvalidOption(
            f"Fovea cannot measure the accuracy of the model's task, {task}; the supported tasks "
            f"are {', '.join(_OF_TASK)}"
        )
    if not isinstance(labelled, wanted):
        raise InvalidOption(
            f"{labelled.path} has {_KINDS[type(labelled)][0]}, but the model's task is {task}: "
            f"give {_KINDS[wanted][1]}"
        )
    if task == "pose" and isinstance(labelled, Dataset) and labelled.path.is_dir():
        _check_visibility(labelled)


def _check_visibility(labelled: Dataset) -> None:
    """Reject labels with polygons for a pose model.

    They are probably keypoints without a visibility, because these look like polygons.
    """
    drawn = [image.path.stem for image in labelled.images if image.outlines]
    if drawn and all(image.keypoints is None for image in labelled.images):
        raise InvalidOption(
            f"{labelled.path}: the labels of {drawn[0]} are polygons, or keypoints without "
            "visibility: for a pose model, write x y v of each keypoint after the box (v is 0 for "
            "a keypoint that is not marked), or only the box"
        )


def measure(
    engine: Engine, labelled: Labels, progress: Progress, options: PredictOptions = EVALUATION
) -> AnyAccuracy:
    """Measure the accuracy of an engine. Its classes must match the labels.

    `options` are used only for detectors.
    """
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
            return evaluate(detect_with(engine, options), labelled, progress)
