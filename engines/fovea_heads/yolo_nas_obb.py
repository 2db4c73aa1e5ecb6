"""Decodes YOLO-NAS-R: rotated boxes and scores, both of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.dense import best_class
from fovea_engines.detect.heads.evidence import fractions, no_sizes
from fovea_engines.detect.heads.grid import off_grid
from fovea_engines.detect.nms import rotated_detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import iou
from fovea_engines.session import Array
from fovea_heads.boxes_and_scores import BoxesAndScores
from fovea_heads.obb import no_angles
from fovea_heads.scored_boxes import ScoredBoxes


class YoloNasObb(BoxesAndScores):
    """Decodes YOLO-NAS-R: boxes cx cy w h angle [batch, cells, 5] and scores, both of a grid."""

    family = "yolo-nas-obb"
    task = "obb"
    named = "yolonas"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "channels": "BGR"}
    box_columns = 5

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, no box and no angle."""
        boxes = outputs[self.outputs[0]][0]
        return (
            ScoredBoxes.contradiction(self, outputs)
            or fractions(boxes[:, :4])
            or no_sizes(boxes[:, 2:4], 2)
            or off_grid(boxes, corners=False)
            or no_angles(boxes[:, 4], 4)
        )

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        [(scores, boxes)] = self.levels(outputs, row)
        found = np.flatnonzero(best_class(scores.T) >= options.conf)
        rotated, few = (each[found].astype(np.float32, copy=False) for each in (boxes, scores))
        return rotated_detections(rotated, few.max(axis=1), few.argmax(axis=1), options, iou)
