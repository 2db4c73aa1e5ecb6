"""Decodes rotated boxes: YOLO's columns or rows with an angle, and YOLO-NAS-R's two tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.dense import best_class
from fovea_engines.detect.heads.evidence import no_sizes
from fovea_engines.detect.heads.signature import Fit, Signature, Strength
from fovea_engines.detect.nms import rotated_detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import bounds, regular
from fovea_engines.session import Array
from fovea_heads.end_to_end import YoloV10
from fovea_heads.suppressed import Rows
from fovea_heads.yolo_dense import YoloV8


class YoloV8Obb(YoloV8):
    """Decodes the columns of YOLOv8, with boxes as in their own frame, then the angle."""

    family = "yolov8-obb"
    task = "obb"
    extras = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a detector's grid with one more column."""
        fit = signature.fit_grid(axis=1, per_cell=1, others=5)
        if isinstance(fit, str):
            return fit
        # By its shape it can also be a detector of one class more.
        strength = Strength.RARE if signature.task is None else fit.strength
        return replace(fit, why=f"{fit.why}; an angle of each", strength=strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, no box and no angle."""
        table = outputs[self.outputs[0]][0]
        return YoloV8.contradiction(self, outputs) or no_angles(table[-1], len(table) - 1)

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        table = outputs[self.outputs[0]][row]
        found = np.flatnonzero(best_class(table[4:-1]) >= options.conf)
        few = table[:, found].astype(np.float32, copy=False)
        classes = few[4:-1]
        rotated = np.concatenate([few[:4], few[-1:]]).T
        return rotated_detections(rotated, classes.max(axis=0), classes.argmax(axis=0), options)


class YoloV10Obb(YoloV10):
    """Decodes cx cy w h, score, class, angle of YOLOv26, and of exports that include NMS."""

    family = "yolov10-obb"
    task = "obb"
    order = "cx cy w h score class"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows [batch, k, 7]."""
        output = signature.single()
        return output if isinstance(output, str) else cls.fit_rows(signature, output, 1)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield what the rows have: an upright box around a width below 0 would be NaN."""
        table = outputs[self.outputs[0]][row]
        yield f"output {self.outputs[0]}", table[~(table[:, self.score] <= 0)]

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no score, class, box or angle."""
        table = outputs[self.outputs[0]][0]
        sure = table[table[:, 4] > 0]
        return (
            YoloV10.contradiction(self, outputs)
            or no_sizes(sure[:, 2:4], 2)
            or no_angles(sure[:, 6], 6)
        )

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        table = outputs[self.outputs[0]][row]
        found, numbers = self.objects(self.split(table), options)
        return replace(found, rotated=regular(_rotated(table[numbers])))

    def split(self, table: Array) -> Rows:
        """Return the rows of a table [rows, 7], with the upright boxes around the rotated."""
        return Rows(bounds(_rotated(table)), table[:, self.score], table[:, self.class_id])


def _rotated(table: Array) -> NDArray[np.float32]:
    return table[:, [0, 1, 2, 3, 6]].astype(np.float32, copy=False)


def no_angles(column: Array, number: int) -> str | None:
    """Exclude angles in radians, [boxes], most of which are more than a turn, or all are 1."""
    values = np.asarray(column, np.float32)
    values = np.abs(values[np.isfinite(values)])
    if len(values) and (values == 1).all():
        return f"column {number} is no angle: it is 1 for every box"
    if len(values) and np.median(values) > 2 * np.pi:
        return f"column {number} is no angle: most are over {np.median(values):.3g}"
    return None
