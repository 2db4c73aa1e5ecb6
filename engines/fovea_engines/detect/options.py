"""Defines the options of one detection request."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_preprocess.errors import InvalidOption

MAX_DETECTIONS = 3000
MAX_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """Per-request options; never mixed with server settings.

    Attributes:
        conf: least score of a detection, 0 to 1.
        iou: boxes that overlap a better one by more than this are dropped, 0 to 1.
        classes: ids or names of the classes to keep, at most 1000; None keeps all. A head takes ids
            only: see `resolve_classes`.
        max_det: most detections per image, 1 to 3000.
        agnostic: suppress across classes as well.

    Raises:
        InvalidOption: on construction, when a value is out of its range.
    """

    conf: float = 0.25
    iou: float = 0.7
    classes: tuple[int | str, ...] | None = None
    max_det: int = 300
    agnostic: bool = False

    def __post_init__(self) -> None:
        # Chained comparisons also refuse NaN.
        if not 0.0 <= self.conf <= 1.0:
            raise InvalidOption(f"conf is {self.conf}; it must be from 0 to 1")
        if not 0.0 <= self.iou <= 1.0:
            raise InvalidOption(f"iou is {self.iou}; it must be from 0 to 1")
        if not 1 <= self.max_det <= MAX_DETECTIONS:
            raise InvalidOption(f"max_det is {self.max_det}; it must be from 1 to {MAX_DETECTIONS}")
        if self.classes is not None and len(self.classes) > MAX_CLASSES:
            raise InvalidOption(
                f"classes has {len(self.classes)} entries; at most {MAX_CLASSES} fit"
            )
        ids = [each for each in self.classes or () if isinstance(each, int)]
        if any(not 0 <= each < 100_000 for each in ids):
            raise InvalidOption("classes has a number that is no class id: ids count from 0 up")
