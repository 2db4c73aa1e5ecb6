"""Decodes the end-to-end head of YOLOv10 and v26, and exports that include NMS: [batch, k, 6]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.signature import Fit, Signature
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array

MOST_ROWS = 1000
"""Exports end in the best 100 to 1000 boxes; more rows are a grid of one class."""

MOST_CLASSES = 2**20
"""A class id beyond this, or none at all, is a broken number."""


@dataclass(frozen=True, slots=True)
class YoloV10(Head):
    """Decodes columns x1 y1 x2 y2 in pixels of the input, score, class id.

    The graph has already suppressed duplicates, so `iou` and `agnostic` have no effect.
    """

    family: ClassVar[str] = "yolov10"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, k, 6]."""
        _, boxes, columns = signature.output.shape
        if columns != 6:
            return f"{columns} columns are not x1 y1 x2 y2 score class"
        if boxes > MOST_ROWS:
            return f"{boxes} rows are more than the {MOST_ROWS} of an end-to-end head"
        sure = boxes > 0 or bool(signature.end_to_end)
        rows = "a dynamic number of" if boxes == -1 else str(boxes)
        return Fit(signature.num_labels, f"{rows} rows of x1 y1 x2 y2 score class", sure=sure)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        rows = outputs[self.output][row]
        few = rows[rows[:, 4] >= options.conf].astype(np.float32, copy=False)
        few = few[(few[:, 5] >= 0) & (few[:, 5] < MOST_CLASSES)]
        class_ids = few[:, 5].round().astype(np.int32)
        return detections(few[:, :4], few[:, 4], class_ids, options, suppress=False)
