"""Decodes rotated boxes, cx cy w h in pixels of the input and an angle in radians.

    yolov8-obb     YOLOv8, 11, 12: [n, 5 + classes, cells] cx cy w h, classes, angle
    yolov10-obb    YOLO26, exports of Ultralytics with nms=True: [n, k, 7] cx cy w h, score, class,
                   angle
    yolo-nas-obb   YOLO-NAS-R: [n, cells, 5] cx cy w h angle, and scores [n, cells, classes]

`fovea_engines.results.rotated` defines the angle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Head
from fovea_engines.heads.boxes_and_scores import BoxesAndScores
from fovea_engines.heads.dense import best_class
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.evidence import fractions, no_sizes
from fovea_engines.heads.grid import off_grid
from fovea_engines.heads.scored_boxes import ScoredBoxes
from fovea_engines.heads.signature import Fit, Signature, Strength
from fovea_engines.heads.suppressed import Rows
from fovea_engines.heads.yolo_dense import YoloV8
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import rotated_detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import bounds, iou, regular
from fovea_engines.session import Array


class YoloV8Obb(YoloV8):
    """Decodes the columns of YOLOv8 and a last column with the angle of the box."""

    family = "yolov8-obb"
    task = "obb"
    extras = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the output of a YOLOv8 detector with one more column."""
        fit = signature.fit_grid(axis=1, per_cell=1, others=5)
        if isinstance(fit, str):
            return fit
        # A detector with one more class has an output of the same shape.
        strength = Strength.RARE if signature.task is None else fit.strength
        return replace(fit, why=f"{fit.why}; one angle for each object", strength=strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores, boxes or angles are outside their valid range.
        """
        table = outputs[self.outputs[0]][0]
        return super().contradiction(outputs) or no_angles(table[-1], len(table) - 1)

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        table = outputs[self.outputs[0]][row]
        found = np.flatnonzero(best_class(table[4:-1]) >= options.conf)
        few = table[:, found].astype(np.float32, copy=False)
        classes = few[4:-1]
        rotated = np.concatenate([few[:4], few[-1:]]).T
        return rotated_detections(rotated, classes.max(axis=0), classes.argmax(axis=0), options)


class YoloV10Obb(YoloV10):
    """Decodes rows cx cy w h, score, class, angle: YOLOv26, and exports that include NMS."""

    family = "yolov10-obb"
    task = "obb"
    order = "cx cy w h score class"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows [batch, k, 7]."""
        output = signature.single()
        return output if isinstance(output, str) else cls.fit_rows(signature, output, 1)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores, classes, boxes or angles are outside their valid range.
        """
        table = outputs[self.outputs[0]][0]
        sure = table[table[:, 4] > 0]
        return (
            super().contradiction(outputs) or no_sizes(sure[:, 2:4], 2) or no_angles(sure[:, 6], 6)
        )

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        table = outputs[self.outputs[0]][row]
        found, numbers = self.objects(self.split(table), options)
        return replace(found, rotated=regular(_select_rotated(table[numbers])))

    def split(self, table: Array) -> Rows:
        """Return the rows of a table [rows, 7], with upright boxes around the rotated ones."""
        return Rows(bounds(_select_rotated(table)), table[:, self.score], table[:, self.class_id])


class YoloNasObb(BoxesAndScores):
    """Decodes YOLO-NAS-R: boxes cx cy w h angle [batch, cells, 5], and scores of the same cells."""

    family = "yolo-nas-obb"
    task = "obb"
    named = "yolonas"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "channels": "BGR"}
    box_columns = 5

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores, boxes or angles are outside their valid range.
        """
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
        """Decode the detections of one image in the batch."""
        [(scores, boxes)] = self.levels(outputs, row)
        found = np.flatnonzero(best_class(scores.T) >= options.conf)
        rotated, few = (each[found].astype(np.float32, copy=False) for each in (boxes, scores))
        return rotated_detections(rotated, few.max(axis=1), few.argmax(axis=1), options, iou)


def _select_rotated(table: Array) -> NDArray[np.float32]:
    return table[:, [0, 1, 2, 3, 6]].astype(np.float32, copy=False)


def no_angles(column: Array, number: int) -> str | None:
    """Return a reason if values [boxes] cannot be angles.

    This is the case if most values are larger than a full turn, or if all values are 1.
    """
    values = np.asarray(column, np.float32)
    values = np.abs(values[np.isfinite(values)])
    if len(values) and (values == 1).all():
        return f"column {number} is not an angle: it is 1 for every box"
    if len(values) and np.median(values) > 2 * np.pi:
        return f"column {number} is not an angle: most values are over {np.median(values):.3g}"
    return None


HEADS: tuple[type[Head], ...] = (YoloV8Obb, YoloV10Obb, YoloNasObb)
