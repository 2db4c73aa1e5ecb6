"""Decodes YOLOv5 and YOLOv7 that were exported without their grid: three raw levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.metadata import literal
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.nms import detections
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

STRIDES = (8, 16, 32)

# Of so many pairs of boxes of one object by two anchors, each this sure, sizes differ by a factor
# of 1.01 to 1.09 (the median), and by 1.2 to 11 with other anchors than those of training (YOLOv5n
# on 23 photographs). Those of YOLOv7 are 1.22 times as large throughout, which shows nothing.
_ENOUGH_PAIRS, _SURE, _SAME_SIZE = 3, 0.3, 1.15
_MOST_COMPARED = 300


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
        first = "x".join(map(str, cls.anchors[:2]))
        why = f"{why}; {counted(classes, 'class')}; anchors from {first} pixels on"
        return Fit(names, classes, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers after a sigmoid, and boxes that need other anchors."""
        reason = no_logits(np.concatenate([outputs[name][0].ravel() for name in self.outputs]))
        return reason or self._other_anchors(*self._boxes(outputs, 0, _SURE))

    def _other_anchors(
        self,
        boxes: NDArray[np.float32],
        scores: NDArray[np.float32],
        class_ids: NDArray[np.intp],
        kinds: NDArray[np.intp],
    ) -> str | None:
        """Exclude these anchors where several find an object, each another size of it."""
        best = np.argsort(-scores)[:_MOST_COMPARED]
        boxes, class_ids, kinds = boxes[best], class_ids[best], kinds[best]
        middle, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        apart = np.abs(middle[:, None] - middle).max(axis=2)
        stride = np.array(STRIDES)[kinds // 3]
        same = (class_ids[:, None] == class_ids) & (apart < np.maximum(stride[:, None], stride) / 2)
        ratios = np.abs(np.log(size[:, None] / size)).max(axis=2)
        ratios = ratios[np.triu(same & (kinds[:, None] != kinds))]
        if len(ratios) < _ENOUGH_PAIRS or (ratio := np.exp(np.median(ratios))) < _SAME_SIZE:
            return None
        return (
            "it has other anchors: the sizes that two of these give one object differ by a factor "
            f"of {ratio:.2f}"
        )

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        return detections(*self._boxes(outputs, row, options.conf)[:3], options)

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")
    def _boxes(
        self, outputs: Mapping[str, Array], row: int, least: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp], NDArray[np.intp]]:
        """Return corners, scores, class ids, and the numbers of anchors, of boxes over a score."""
        conf = np.float64(least)
        logit = np.log(conf / (1 - conf))
        boxes, scores, class_ids, kinds = [], [], [], []
        anchors = np.array(self.anchors, np.float32).reshape(3, 3, 2)
        for at, (name, stride) in enumerate(zip(self.outputs, STRIDES, strict=True)):
            level = outputs[name][row]
            # No class exceeds 1, so objectness is an upper bound of the score.
            found = np.nonzero(level[..., 4] >= logit)
            few = 1 / (1 + np.exp(-level[found].astype(np.float32)))
            cell = np.stack([found[2], found[1]], axis=1)
            centre = (2 * few[:, :2] - 0.5 + cell) * np.float32(stride)
            size = (2 * few[:, 2:4]) ** 2 * anchors[at][found[0]]
            boxes.append(corners(np.concatenate([centre, size], axis=1)))
            scores.append(few[:, 4] * few[:, 5:].max(axis=1))
            class_ids.append(few[:, 5:].argmax(axis=1))
            kinds.append(3 * at + found[0])
        return (
            np.concatenate(boxes),
            np.concatenate(scores),
            np.concatenate(class_ids),
            np.concatenate(kinds),
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
