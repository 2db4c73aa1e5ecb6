"""Runs a detector over labelled images, and measures its accuracy by COCO's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import Accuracy
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

EVALUATION: Final = PredictOptions(conf=0.001, iou=0.7, max_det=300)
"""Options of a detector while it is measured.

Precision is read at every recall, so nearly everything it finds is wanted. COCO counts the best 100
of each class on an image; 300 of all classes together is what detectors are usually measured with.
"""

# Axes of COCO's precision array: overlap .50 to .95, recall 0 to 1, class, area, most an image.
_AREAS: Final = {"all": 0, "small": 1, "medium": 2, "large": 3}

Detect = Callable[[LabelledImage], Detections]
"""Finds what is in an image: boxes in its upright pixels."""


def in_process(engine: Engine) -> Detect:
    """Return a function that detects with an engine; UnsupportedModel if it serves tensors only."""
    if engine.head is None:
        raise UnsupportedModel(
            f"{engine.card.name} serves tensors only, so there are no boxes to measure: "
            f"{engine.card.reason}"
        )
    return lambda image: engine.detect(image.pixels(), EVALUATION)


def evaluate(detect: Detect, dataset: Dataset, progress: Progress | None = None) -> Accuracy:
    """Measure a detector whose class ids are the dataset's."""
    return mean_ap(dataset, detect_all(detect, dataset, progress or Progress()))


def detect_all(detect: Detect, dataset: Dataset, progress: Progress) -> list[Detections]:
    """Return the detections in each image of a dataset, with the options `EVALUATION`."""
    images = dataset.images
    with progress.phase("accuracy"):
        return [detect(image) for image in progress.each(images, len(images))]


def mean_ap(dataset: Dataset, found: Sequence[Detections]) -> Accuracy:
    """Measure the detections in each image of a dataset by COCO's rules.

    Each detection, best score first, is matched with the best-overlapping unmatched object of its
    class. The best 100 per class and image count. Precision is read at 101 recalls (Lin et al.,
    Microsoft COCO, 2014, and cocoapi's `cocoeval.py`). Rotated boxes overlap as rectangles.

    Raises InvalidOption where the detections are rotated and the labels are not.
    """
    # Imported where they are used: a build without labels does not need them.
    from faster_coco_eval import COCO, COCOeval_faster

    from fovea_engines.evaluate.accuracy.rotated import RotatedJudge

    rotated = any(one.rotated is not None for one in found)
    if rotated and any(image.rotated is None for image in dataset.images):
        raise InvalidOption(
            f"{dataset.path} labels upright boxes, and the model finds rotated ones: give a folder "
            "of YOLO labels with the corners of each object, class x1 y1 x2 y2 x3 y3 x4 y4"
        )
    classes = sorted({int(class_id) for image in dataset.images for class_id in image.class_ids})
    truth, answers = COCO(), COCO()
    truth.dataset = _document(
        classes,
        [
            _annotations(
                one.boxes,
                one.class_ids,
                one.rotated if rotated else None,
                area=one.areas,
                iscrowd=one.crowd.astype(int),
            )
            for one in dataset.images
        ],
    )
    answers.dataset = _document(
        classes,
        [_annotations(one.boxes, one.class_ids, one.rotated, score=one.scores) for one in found],
    )
    for index in (truth, answers):
        index.createIndex()
    judge = (RotatedJudge if rotated else COCOeval_faster)(truth, answers, "bbox")
    judge.evaluate()
    judge.accumulate()
    precision = np.asarray(judge.eval["precision"])[..., -1]
    everything = precision[..., _AREAS["all"]]
    per_class = {
        class_name(dataset.class_names, class_id): _mean(everything[:, :, index])
        for index, class_id in enumerate(classes)
    }
    return Accuracy(
        images=len(dataset.images),
        map50_95=_mean(everything) or 0.0,
        map50=_mean(everything[0]) or 0.0,
        per_class={name: value for name, value in per_class.items() if value is not None},
        by_size={
            size: _mean(precision[..., area]) for size, area in _AREAS.items() if size != "all"
        },
    )


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Return the mean over classes that have objects; COCO marks the others with -1."""
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else None


def _document(classes: Sequence[int], images: Sequence[Iterable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of a COCO file; `images` holds each image's annotations."""
    annotations = (
        annotation | {"image_id": image}
        for image, annotations in enumerate(images)
        for annotation in annotations
    )
    return {
        "images": [{"id": image} for image in range(len(images))],
        "categories": [{"id": class_id} for class_id in classes],
        # Ids start at 1, because 0 means "no match" to COCOeval.
        "annotations": [row | {"id": number} for number, row in enumerate(annotations, start=1)],
    }


def _annotations(
    boxes: NDArray[np.float32],
    class_ids: NDArray[np.int32],
    rotated: NDArray[np.float32] | None,
    **columns: NDArray[Any],
) -> Iterator[dict[str, Any]]:
    corners = boxes.astype(np.float64)
    bboxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    columns = {"area": bboxes[:, 2] * bboxes[:, 3]} | columns
    columns |= {"category_id": class_ids, "bbox": bboxes}
    if rotated is not None:
        columns |= {"rotated": rotated, "area": rotated[:, 2] * rotated[:, 3]}
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        yield dict(zip(columns, row, strict=True))
