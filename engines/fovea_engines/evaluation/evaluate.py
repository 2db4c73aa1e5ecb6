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
    """Objects in an image with masks as run lengths, so that a whole dataset fits in memory.

    Attributes:
        found: the objects in upright pixels, without masks.
        masks: mask of each object; None if the task has none.
    """

    found: Detections
    masks: tuple[RunLengths, ...] | None = None

    @classmethod
    def of(cls, found: Detections) -> Self:
        """Convert detections to this form."""
        if found.masks is None:
            return cls(found)
        masks = tuple(run_lengths(one, found.masks.size) for one in found.masks.bitmaps())
        return cls(replace(found, masks=None), masks)


EVALUATION: Final = PredictOptions(conf=0.001, iou=0.7, max_det=300)
"""Options of a detector while it is measured.

Precision is measured at every recall, so nearly all detections are needed. COCO counts the best 100
of each class on an image. 300 of all classes together is the usual limit for detectors.
"""

Detect = Callable[[LabelledImage], CompactDetections]
"""Returns the objects in an image, in its upright pixels."""


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
    """Measure a detector whose class ids are the dataset's class ids."""
    # Imported here, because a build without labels does not need COCO's evaluation.
    from fovea_engines.evaluation.mean_ap import mean_ap

    return mean_ap(dataset, detect_all(detect, dataset, progress or Progress()))


def detect_all(detect: Detect, dataset: Dataset, progress: Progress) -> list[CompactDetections]:
    """Return the results of `detect` for each image of a dataset."""
    images = dataset.images
    with progress.phase("accuracy"):
        return [detect(image) for image in progress.each(images, len(images))]
