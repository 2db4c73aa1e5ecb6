"""Runs a detector over labelled images, and measures its accuracy by COCO's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.answer import Answer
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.documents import answers_document, labels_document
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage
from fovea_engines.evaluate.agreement.overlap import sigmas
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.figures import Overlap
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

EVALUATION: Final = PredictOptions(conf=0.001, iou=0.7, max_det=300)
"""Options of a detector while it is measured.

Precision is read at every recall, so nearly everything it finds is wanted. COCO counts the best 100
of each class on an image; 300 of all classes together is what detectors are usually measured with.
"""

_KINDS: Final[dict[Overlap, str]] = {"mask IoU": "segm", "OKS": "keypoints"}
_SIZES: Final = ("small", "medium", "large")

Detect = Callable[[LabelledImage], Answer]
"""Finds what is in an image, in its upright pixels."""


def in_process(engine: Engine) -> Detect:
    """Return a function that detects with an engine; UnsupportedModel if it serves tensors only."""
    if engine.head is None:
        raise UnsupportedModel(
            f"{engine.card.name} serves tensors only, so there are no boxes to measure: "
            f"{engine.card.reason}"
        )
    return lambda image: Answer.of(engine.detect(image.pixels(), EVALUATION))


def evaluate(detect: Detect, dataset: Dataset, progress: Progress | None = None) -> Accuracy:
    """Measure a detector whose class ids are the dataset's."""
    return mean_ap(dataset, detect_all(detect, dataset, progress or Progress()))


def detect_all(detect: Detect, dataset: Dataset, progress: Progress) -> list[Answer]:
    """Return the answers for each image of a dataset, with the options `EVALUATION`."""
    images = dataset.images
    with progress.phase("accuracy"):
        return [detect(image) for image in progress.each(images, len(images))]


def mean_ap(dataset: Dataset, answers: Sequence[Answer]) -> Accuracy:
    """Measure the answers for each image of a dataset by COCO's rules.

    Each detection, best score first, is matched with the best-overlapping unmatched object of its
    class. The best 100 per class and image count, and 20 of those with keypoints. Precision is read
    at 101 recalls (Lin et al., Microsoft COCO, 2014, and cocoapi's `cocoeval.py`).

    What overlaps are masks or keypoints where both the labels and the answers have them, and the
    figures of the boxes are beside theirs. Rotated boxes overlap as rectangles.

    Raises InvalidOption where the detections are rotated and the labels are not.
    """
    # Imported where it is used: a build without labels does not need it.
    from faster_coco_eval import COCO

    images = dataset.images
    classes = sorted({int(class_id) for image in images for class_id in image.class_ids})
    own = _overlap_of(dataset, answers)
    indices = []
    for document in (
        labels_document(classes, images, rotated=own == "rotated IoU"),
        answers_document(classes, images, answers),
    ):
        index = COCO()
        index.dataset = document
        index.createIndex()
        indices.append(index)
    accuracy = _accuracy(own, indices, dataset, classes)
    if own in ("IoU", "rotated IoU"):
        return accuracy
    boxes = _accuracy("IoU", indices, dataset, classes)
    return replace(accuracy, box_map50_95=boxes.map50_95, box_map50=boxes.map50)


def _overlap_of(dataset: Dataset, answers: Sequence[Answer]) -> Overlap:
    """Return by what objects can be compared, as labels and answers both have it."""
    images = dataset.images
    if any(answer.found.rotated is not None for answer in answers):
        if any(image.rotated is None for image in images):
            raise InvalidOption(
                f"{dataset.path} labels upright boxes, and the model finds rotated ones: give a "
                "folder of YOLO labels with the corners of each object, class x1 y1 x2 y2 x3 y3 x4 "
                "y4"
            )
        return "rotated IoU"
    outlined = all(image.outlines is not None for image in images if len(image.boxes))
    if outlined and all(answer.masks is not None for answer in answers if len(answer.found)):
        return "mask IoU"
    marked = [image.keypoints for image in images if len(image.boxes)]
    marked += [answer.found.keypoints for answer in answers if len(answer.found)]
    counts = {None if points is None else points.shape[1] for points in marked}
    return "OKS" if len(counts) == 1 and None not in counts else "IoU"


def _accuracy(
    overlap: Overlap, indices: Sequence[Any], dataset: Dataset, classes: Sequence[int]
) -> Accuracy:
    from faster_coco_eval import COCOeval_faster

    from fovea_engines.evaluate.accuracy.rotated import RotatedJudge

    kind = RotatedJudge if overlap == "rotated IoU" else COCOeval_faster
    judge = kind(*indices, _KINDS.get(overlap, "bbox"))
    if overlap == "OKS":
        points = next(one.keypoints for one in dataset.images if one.keypoints is not None)
        judge.params.kpt_oks_sigmas = sigmas(points.shape[1])
    judge.evaluate()
    judge.accumulate()
    # Its axes are overlap .50 to .95, recall 0 to 1, class, area, most an image.
    precision = np.asarray(judge.eval["precision"])[..., -1]
    areas = list(judge.params.areaRngLbl)
    everything = precision[..., areas.index("all")]
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
            size: _mean(precision[..., areas.index(size)]) if size in areas else None
            for size in _SIZES
        },
        overlap=overlap,
    )


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Return the mean over classes that have objects; COCO marks the others with -1."""
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else None
