"""Decodes YOLO models with three output levels, which do not yet include the grid and anchors.

The finest level is the first output.

    yolov5-raw, yolov7-raw   YOLOv5 and YOLOv7 without the grid of their export
                             [n, 3, rows, columns, 5 + classes] of logits
    yolov4                   YOLOv4 of the ONNX model zoo
                             [n, rows, columns, 3, 5 + classes]: logits of boxes, probabilities

A cell has x y w h, an objectness and classes for each of three anchors. In the formulas, s is the
sigmoid of a value.

YOLOv5 and v7: the centre is (2 s - .5 + cell) x stride and the size is (2 s)^2 x anchor (YOLOv5's
documentation, Architecture, 4.4). YOLOv4, with the scale k of a level: the centre is
(s k - (k - 1) / 2 + cell) x stride and the size is exp x anchor (YOLOv4, arXiv 2004.10934, section
3.4, against grid sensitivity).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Head, corners
from fovea_engines.heads.evidence import no_logits, no_probabilities
from fovea_engines.heads.metadata import literal
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.text import counted

_STRIDES = (8, 16, 32)
_V5_ANCHORS = (
    *(10, 13, 16, 30, 33, 23),
    *(30, 61, 62, 45, 59, 119),
    *(116, 90, 156, 198, 373, 326),
)
_V7_ANCHORS = (
    *(12, 16, 19, 36, 40, 28),
    *(36, 75, 76, 55, 72, 146),
    *(142, 110, 192, 243, 459, 401),
)

# Limits for the check of anchors: number of pairs, score, and factor between sizes. A pair is two
# anchors that find the same object with scores of .3 or more. The check uses the median factor
# between the sizes of the two boxes, for three or more pairs. With the anchors of the training, the
# factor is 1.01 to 1.09; with wrong anchors, it is 1.2 to 11 (YOLOv5n on 23 photographs). The check
# does not detect YOLOv7's anchors, because these are larger by the same factor of 1.22 on all
# levels.
_ENOUGH_PAIRS, _SURE, _SAME_SIZE = 3, 0.3, 1.15
_MAX_COMPARED = 300


class _Levels(Detector):
    """Decodes three levels with three anchors each.

    Attributes:
        anchors: width and height in pixels of each anchor of each level, from the checkpoints that
            were trained on COCO.
        anchors_along: index of the dimension of the anchors.
    """

    duplicates = True
    anchors: ClassVar[tuple[int, ...]]
    anchors_along: ClassVar[int]

    @classmethod
    def on_grid(cls, signature: Signature) -> tuple[Strength, str, int] | str:
        """Return the strength, a text and the number of classes if the outputs are three levels.

        If they are not, return the reason.
        """
        shapes = [tensor.shape for tensor in signature.outputs]
        along = cls.anchors_along
        if len(shapes) != 3 or any(len(shape) != 5 or shape[along] != 3 for shape in shapes):
            return OTHERS
        # If the second dimension is 3, the model is a YOLOv5: its second dimension is the anchors.
        if len({shape[4] for shape in shapes}) != 1 or (along == 3 and shapes[0][1] == 3):
            return OTHERS
        places = [[shape[at] for at in (1, 2, 3) if at != along] for shape in shapes]
        boxes = [3 * h * w if h > 0 and w > 0 else -1 for h, w in places]
        if isinstance(evidence := signature.on_levels(boxes, _STRIDES, 3), str):
            return evidence
        if isinstance(classes := signature.count_classes(shapes[0][4], 5), str):
            return classes
        return *evidence, classes

    @classmethod
    def make_fit(cls, signature: Signature, strength: Strength, why: str, classes: int) -> Fit:
        """Return the fit of all outputs. Its text contains the first anchor of the family."""
        names = tuple(tensor.name for tensor in signature.outputs)
        first = "x".join(map(str, cls.anchors[:2]))
        why = f"{why}; {counted(classes, 'class')}; the first anchor has {first} pixels"
        return Fit(names, classes, why, strength)

    def sides(self) -> NDArray[np.float32]:
        """Return widths and heights of the anchors, float32 [level, anchor, 2]."""
        return np.array(self.anchors, np.float32).reshape(3, 3, 2)

    def rows(self, outputs: Mapping[str, Array]) -> Array:
        """Return the values of all boxes for the first image, [boxes, columns]."""
        levels = [outputs[name][0] for name in self.outputs]
        table: Array = np.concatenate([level.reshape(-1, level.shape[-1]) for level in levels])
        return table

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the values of all boxes for the first image, [columns, boxes]."""
        return self.rows(outputs).T


class YoloRaw(_Levels):
    """Decodes levels [batch, 3, rows, columns, 5 + classes] of logits: YOLOv5 and v7."""

    anchors_along = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three levels, and for the anchors if the metadata has them."""
        if isinstance(found := cls.on_grid(signature), str):
            return found
        strength, why, classes = found
        declared = literal(signature.metadata.get("anchors", ""))
        if declared is not None:
            if not _equal(declared, cls.anchors):
                return "the metadata has other anchors"
            strength, why = Strength.METADATA, f"{why}; the metadata has the anchors"
        return cls.make_fit(signature, strength, why, classes)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are after a sigmoid, or boxes need other anchors.
        """
        reason = no_logits(np.concatenate([outputs[name][0].ravel() for name in self.outputs]))
        return reason or self._other_anchors(*self._boxes(outputs, 0, _SURE))

    def _other_anchors(
        self,
        boxes: NDArray[np.float32],
        scores: NDArray[np.float32],
        class_ids: NDArray[np.intp],
        kinds: NDArray[np.intp],
    ) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if two anchors that find one object give it different sizes.
        """
        best = np.argsort(-scores)[:_MAX_COMPARED]
        boxes, class_ids, kinds = boxes[best], class_ids[best], kinds[best]
        middle, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        apart = np.abs(middle[:, None] - middle).max(axis=2)
        stride = np.array(_STRIDES)[kinds // 3]
        same = (class_ids[:, None] == class_ids) & (apart < np.maximum(stride[:, None], stride) / 2)
        ratios = np.abs(np.log(size[:, None] / size)).max(axis=2)
        ratios = ratios[np.triu(same & (kinds[:, None] != kinds))]
        if len(ratios) < _ENOUGH_PAIRS or (ratio := np.exp(np.median(ratios))) < _SAME_SIZE:
            return None
        return (
            "its anchors are different: the sizes that two anchors give to one object differ by a "
            f"factor of {ratio:.2f}"
        )

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        return detections(*self._boxes(outputs, row, options.conf)[:3], options)

    @np.errstate(over="ignore", divide="ignore", invalid="ignore")
    def _boxes(
        self, outputs: Mapping[str, Array], row: int, least: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp], NDArray[np.intp]]:
        """Return the corners, scores, class ids and anchor indices of boxes with high scores.

        `least` is the smallest score.
        """
        conf = np.float64(least)
        logit = np.log(conf / (1 - conf))
        boxes, scores, class_ids, kinds = [], [], [], []
        anchors = self.sides()
        for at, (name, stride) in enumerate(zip(self.outputs, _STRIDES, strict=True)):
            level = outputs[name][row]
            # The objectness is an upper bound of the score, because no class exceeds 1.
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


class YoloV4(_Levels):
    """Decodes levels [batch, rows, columns, 3, 5 + classes] of logits and probabilities.

    Attributes:
        scales: the scale k of each level.
    """

    family = "yolov4"
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 128}
    anchors = _V7_ANCHORS
    anchors_along = 3
    scales: ClassVar[tuple[float, ...]] = (1.2, 1.1, 1.05)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three levels in which the anchors are the dimension before the columns."""
        found = cls.on_grid(signature)
        return found if isinstance(found, str) else cls.make_fit(signature, *found)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against the family if scores are logits, or boxes are decoded already."""
        rows = self.rows(outputs)
        if (reason := no_probabilities(rows[:, 4:], 4)) is not None:
            return reason
        reason = no_logits(rows[:, :4])
        return None if reason is None else f"boxes: {reason}"

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        boxes, scores, class_ids = [], [], []
        levels = zip(self.outputs, _STRIDES, self.scales, self.sides(), strict=True)
        for name, stride, scale, sides in levels:
            level = outputs[name][row]
            # The objectness is an upper bound of the score, because no class exceeds 1.
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


def _equal(declared: object, anchors: tuple[int, ...]) -> bool:
    try:
        return np.ravel(np.array(declared, np.float64)).tolist() == list(anchors)
    except (TypeError, ValueError):
        return False


HEADS: tuple[type[Head], ...] = (
    YoloRaw.as_family("yolov5-raw", anchors=_V5_ANCHORS),
    YoloRaw.as_family("yolov7-raw", anchors=_V7_ANCHORS),
    YoloV4,
)
