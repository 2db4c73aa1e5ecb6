"""Decodes the anchor-based head of YOLOv5 and v7: [batch, 3 x cells, 5 + classes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Head, Layout, corners
from fovea_engines.detect.heads.signature import Fit, Signature
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class YoloV5(Head):
    """Decodes columns cx cy w h in pixels of the input, objectness, a probability per class.

    The score is objectness times the best class.
    """

    family: ClassVar[str] = "yolov5"
    layout: ClassVar[Layout | None] = Layout(axis=2, objectness=True)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, 3 x cells, 5 + classes]."""
        _, boxes, columns = signature.output.shape
        return signature.fit_grid(boxes, columns, per_cell=3, others=5)

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        rows = outputs[self.output][row]
        # No class exceeds 1, so objectness is an upper bound of the score and rejects most rows.
        found = np.flatnonzero(rows[:, 4] >= options.conf)
        few = rows[found].astype(np.float32, copy=False)
        scores = few[:, 4] * few[:, 5:].max(axis=1)
        return detections(corners(few[:, :4]), scores, few[:, 5:].argmax(axis=1), options)
