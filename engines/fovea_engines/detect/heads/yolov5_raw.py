"""Decodes YOLOv5 and YOLOv7 that were exported without their grid: three raw levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.metadata import literal
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.plural import counted
from fovea_engines.session import Array

STRIDES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class YoloV5Raw(Detector):
    """Decodes levels [batch, 3, rows, columns, 5 + classes] of logits, the finest first.

    Follows YOLOv5's documentation (Architecture, 4.4): with s the sigmoid, the centre is
    (2 s - .5 + cell) x stride, and the size is (2 s)^2 x anchor.

    Attributes:
        anchors: width and height by level and anchor, pixels, which COCO's checkpoints have.
    """

    family: ClassVar[str] = "yolov5-raw"
    duplicates: ClassVar[bool] = True
    anchors: ClassVar[tuple[int, ...]] = (
        *(10, 13, 16, 30, 33, 23),
        *(30, 61, 62, 45, 59, 119),
        *(116, 90, 156, 198, 373, 326),
    )

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three levels, and for the anchors where the metadata has them."""
        shapes = [tensor.shape for tensor in signature.outputs]
        if len(shapes) != 3 or any(len(shape) != 5 or shape[1] != 3 for shape in shapes):
            return OTHERS
        if len({shape[4] for shape in shapes}) != 1:
            return OTHERS
        boxes = [3 * h * w if h > 0 and w > 0 else -1 for _, _, h, w, _ in shapes]
        if isinstance(evidence := signature.on_levels(boxes, STRIDES, 3), str):
            return evidence
        if isinstance(classes := signature.count_classes(shapes[0][4], 5), str):
            return classes
        strength, why = evidence
        told = literal(signature.metadata.get("anchors", ""))
        if told is not None:
            if not _equal(told, cls.anchors):
                return "the metadata has other anchors"
            strength, why = Strength.METADATA, f"{why}; the metadata has the anchors"
        names = tuple(tensor.name for tensor in signature.outputs)
        return Fit(names, classes, f"{why}; {counted(classes, 'class')}", strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers after a sigmoid."""
        return no_logits(np.concatenate([outputs[name][0].ravel() for name in self.outputs]))

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        conf = np.float64(options.conf)
        least = np.log(conf / (1 - conf))
        boxes, scores, class_ids = [], [], []
        anchors = np.array(self.anchors, np.float32).reshape(3, 3, 2)
        for name, stride, sides in zip(self.outputs, STRIDES, anchors, strict=True):
            level = outputs[name][row]
            # No class exceeds 1, so objectness is an upper bound of the score.
            found = np.nonzero(level[..., 4] >= least)
            few = 1 / (1 + np.exp(-level[found].astype(np.float32)))
            cell = np.stack([found[2], found[1]], axis=1)
            centre = (2 * few[:, :2] - 0.5 + cell) * np.float32(stride)
            size = (2 * few[:, 2:4]) ** 2 * sides[found[0]]
            boxes.append(corners(np.concatenate([centre, size], axis=1)))
            scores.append(few[:, 4] * few[:, 5:].max(axis=1))
            class_ids.append(few[:, 5:].argmax(axis=1))
        return detections(
            np.concatenate(boxes), np.concatenate(scores), np.concatenate(class_ids), options
        )

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the logits of all boxes."""
        levels = [outputs[name][0] for name in self.outputs]
        table: Array = np.concatenate([level.reshape(-1, level.shape[-1]) for level in levels])
        return table.T


@dataclass(frozen=True, slots=True)
class YoloV7Raw(YoloV5Raw):
    """Decodes YOLOv7, which has other anchors."""

    family: ClassVar[str] = "yolov7-raw"
    anchors: ClassVar[tuple[int, ...]] = (
        *(12, 16, 19, 36, 40, 28),
        *(36, 75, 76, 55, 72, 146),
        *(142, 110, 192, 243, 459, 401),
    )


def _equal(told: object, anchors: tuple[int, ...]) -> bool:
    try:
        return np.ravel(np.array(told, np.float64)).tolist() == list(anchors)
    except (TypeError, ValueError):
        return False
