"""Decodes YOLOv4 of the ONNX model zoo: three levels without their grid and anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import no_logits, no_probabilities
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

_STRIDES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class YoloV4(Detector):
    """Decodes levels [batch, rows, columns, 3, 5 + classes], the finest first.

    With s the sigmoid and k the scale of a level, a centre is (s k - (k - 1) / 2 + cell) x stride,
    and a size is exp x anchor (YOLOv4, arXiv 2004.10934, section 3.4, against grid sensitivity).
    Objectness and classes are probabilities already.

    Attributes:
        anchors: width and height by level and anchor, pixels, of COCO's checkpoint.
        scales: k of each level.
    """

    family: ClassVar[str] = "yolov4"
    duplicates: ClassVar[bool] = True
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 128}
    anchors: ClassVar[tuple[int, ...]] = (
        *(12, 16, 19, 36, 40, 28),
        *(36, 75, 76, 55, 72, 146),
        *(142, 110, 192, 243, 459, 401),
    )
    scales: ClassVar[tuple[float, ...]] = (1.2, 1.1, 1.05)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three levels whose anchors lie beside the columns."""
        shapes = [tensor.shape for tensor in signature.outputs]
        if len(shapes) != 3 or any(len(shape) != 5 or shape[3] != 3 for shape in shapes):
            return OTHERS
        if len({shape[4] for shape in shapes}) != 1 or shapes[0][1] == 3:
            return OTHERS
        boxes = [3 * h * w if h > 0 and w > 0 else -1 for _, h, w, _, _ in shapes]
        if isinstance(evidence := signature.on_levels(boxes, _STRIDES, 3), str):
            return evidence
        if isinstance(classes := signature.count_classes(shapes[0][4], 5), str):
            return classes
        strength, why = evidence
        why = f"{why}; {counted(classes, 'class')}; anchors from 12x16 pixels on"
        return Fit(tuple(tensor.name for tensor in signature.outputs), classes, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are logits, and boxes that are decoded already."""
        rows = np.concatenate(
            [outputs[name][0].reshape(-1, outputs[name].shape[-1]) for name in self.outputs]
        )
        if (reason := no_probabilities(rows[:, 4:], 4)) is not None:
            return reason
        reason = no_logits(rows[:, :4])
        return None if reason is None else f"of the boxes, {reason}"

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        boxes, scores, class_ids = [], [], []
        anchors = np.array(self.anchors, np.float32).reshape(3, 3, 2)
        levels = zip(self.outputs, _STRIDES, self.scales, anchors, strict=True)
        for name, stride, scale, sides in levels:
            level = outputs[name][row]
            # No class exceeds 1, so objectness is an upper bound of the score.
            found = np.nonzero(level[..., 4] >= options.conf)
            few = level[found].astype(np.float32)
            cell: NDArray[np.float32] = np.stack([found[1], found[0]], axis=1).astype(np.float32)
            shares = 1 / (1 + np.exp(-few[:, :2]))
            centre = (shares * scale - (scale - 1) / 2 + cell) * stride
            size = np.exp(few[:, 2:4]) * sides[found[2]]
            boxes.append(corners(np.concatenate([centre, size], axis=1, dtype=np.float32)))
            scores.append(few[:, 4] * few[:, 5:].max(axis=1))
            class_ids.append(few[:, 5:].argmax(axis=1))
        joined = np.concatenate(boxes), np.concatenate(scores), np.concatenate(class_ids)
        return detections(*joined, options)

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the numbers of all boxes."""
        levels = [outputs[name][0] for name in self.outputs]
        table: Array = np.concatenate([level.reshape(-1, level.shape[-1]) for level in levels])
        return table.T
