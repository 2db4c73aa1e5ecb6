"""What one request may ask of a detector."""

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
        classes: class ids to keep, at most 1000; None keeps all.
        max_det: most detections an image, 1 to 3000.
        agnostic: suppress across classes as well.

    Raises:
        InvalidOption: on construction, when a value is out of its range.
    """

    conf: float = 0.25
    iou: float = 0.7
    classes: tuple[int, ...] | None = None
    max_det: int = 300
    agnostic: bool = False

    def __post_init__(self) -> None:
        # NaN fails both comparisons of a chained test, so it is refused as well.
        if not 0.0 <= self.conf <= 1.0:
            raise InvalidOption(f"conf is {self.conf}; it must be from 0 to 1")
        if not 0.0 <= self.iou <= 1.0:
            raise InvalidOption(f"iou is {self.iou}; it must be from 0 to 1")
        if not 1 <= self.max_det <= MAX_DETECTIONS:
            raise InvalidOption(f"max_det is {self.max_det}; it must be from 1 to {MAX_DETECTIONS}")
        if self.classes is not None and len(self.classes) > MAX_CLASSES:
            raise InvalidOption(f"classes has {len(self.classes)} ids; at most {MAX_CLASSES} fit")
        if self.classes is not None and any(not 0 <= c < 100_000 for c in self.classes):
            raise InvalidOption("classes must be class ids: whole numbers from 0 up")
