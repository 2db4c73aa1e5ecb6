"""Runs a detector over labelled images and measures its accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage
from fovea_engines.evaluate.accuracy.mean_ap import mean_ap
from fovea_engines.progress import Progress
from fovea_engines.repository.figures import Accuracy
from fovea_preprocess.errors import UnsupportedModel

EVALUATION: Final = PredictOptions(conf=0.001, iou=0.7, max_det=300)
"""Options of a detector while it is measured.

Precision is read at every recall, so nearly everything it finds is wanted. COCO counts the best 100
of each class on an image; 300 of all classes together is what detectors are usually measured with.
"""

Detect = Callable[[LabelledImage], Detections]
"""Finds what is in an image: boxes in its upright pixels."""


def in_process(engine: Engine) -> Detect:
    """Return a function that detects with an opened engine.

    Raises:
        UnsupportedModel: the engine serves tensors only.
    """
    if engine.head is None:
        raise UnsupportedModel(
            f"{engine.card.name} serves tensors only, so there are no boxes to measure: "
            f"{engine.card.reason}"
        )
    return lambda image: engine.detect(image.pixels(), EVALUATION)


def evaluate(detect: Detect, dataset: Dataset, progress: Progress | None = None) -> Accuracy:
    """Measure a detector whose class ids are the dataset's; raises as `detect_all`."""
    return mean_ap(dataset, detect_all(detect, dataset, progress or Progress()))


def detect_all(detect: Detect, dataset: Dataset, progress: Progress) -> list[Detections]:
    """Return the detections in each image of a dataset.

    Args:
        detect: called with one image at a time; answers with the options `EVALUATION`.
        dataset: the labelled images.
        progress: reports the phase "accuracy" and counts the images.

    Raises:
        FoveaError: raised by `detect`; an image that cannot be decoded is named.
    """
    images = dataset.images
    with progress.phase("accuracy"):
        return [detect(image) for image in progress.each(images, len(images))]
