"""Runs a detector over labelled images, and measures its accuracy by COCO's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from fovea_engines.engine import Engine
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import RunLengths, run_lengths
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True, eq=False)
class CompactDetections:
    """Objects in an image. Masks are run lengths, so that the results of a dataset fit in memory.

    Attributes:
        found: objects in pixels of the upright image, without masks.
        masks: mask of each object; None if the task has no masks.
    """

    found: Detections
    masks: tuple[RunLengths, ...] | None = None

    @classmethod
    def of(cls, found: Detections) -> Self:
        """Convert detections to this class."""
        if found.masks is None:
            return cls(found)
        masks = tuple(run_lengths(one, found.masks.size) for one in found.masks.bitmaps())
        return cls(replace(found, masks=None), masks)


EVALUATION: Final = PredictOptions(conf=0.001, iou=0.7, max_det=300)
"""Options of a detector while its accuracy is measured.

Precision is measured at every recall, so nearly all detections are needed. COCO counts the best 100
detections of each class on an image. A limit of 300 detections of all classes is usual for
detectors.
"""

Detect = Callable[[LabelledImage], CompactDetections]
"""Function that returns the objects in an image, in pixels of the upright image."""


def detect_with(engine: Engine, options: PredictOptions = EVALUATION) -> Detect:
    """Return a function that detects objects with an engine.

    Raises:
        UnsupportedModel: the engine has no head, and serves only tensors.
    """
    if engine.head is None:
        raise UnsupportedModel(
            f"{engine.card.name} serves tensors only, so there are no boxes to measure: "
            f"{engine.card.reason}"
        )
    return lambda image: CompactDetections.of(engine.detect(image.pixels(), options))


def evaluate(detect: Detect, dataset: Dataset, progress: Progress | None = None) -> Accuracy:
    """Measure the accuracy of a detector. Its class ids must be the class ids of the dataset."""
    # Imported here, because an import at the top of the module would slow down builds without
    # labels. They do not need COCO's evaluation.
    from fovea_engines.evaluation.mean_ap import mean_ap

    return mean_ap(dataset, detect_all(detect, dataset, progress or Progress()))


def detect_all(detect: Detect, dataset: Dataset, progress: Progress) -> list[CompactDetections]:
    """Return the results of `detect` for each image of a dataset."""
    images = dataset.images
    with progress.phase("accuracy"):
        return [detect(image) for image in progress.each(images, len(images))]
