"""Decodes dog-qiuqiu's detectors for small processors.

All boxes of a cell share the class probabilities of the cell.

    fastestdet        FastestDet: a map at stride 16
                      [n, 5 + classes, h, w]: objectness, x y w h, classes
    yolo-fastestv2    Yolo-FastestV2: two maps, of three anchors a cell, the finest first
                      [n, h, w, 15 + classes]: x y w h of each, objectness of each, classes

The formulas of FastestDet are from its documentation. The centre is cell + tanh, in cells. The size
is a sigmoid, as a fraction of the input. The score is objectness^.6 x class^.4.

All values v of Yolo-FastestV2 are between 0 and 1. A centre is (2 v - .5 + cell) x stride, and a
size is (2 v)^2 x anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Head, corners
from fovea_engines.heads.evidence import no_probabilities, no_shares
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.text import counted

_STRIDES = (16, 32)
_ANCHORS = 3
_BOXES, _OTHERS = 4 * _ANCHORS, 5 * _ANCHORS
_COCO = 80

# Exponents of the objectness and of the class probability in the score.
_OBJECTNESS, _CLASS = 0.6, 0.4


class FastestDet(Detector):
    """Decodes objectness, x y w h, and a softmax over the classes."""

    family = "fastestdet"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "channels": "BGR"}
    sized = True
    duplicates = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map at stride 16. Models of other tasks may have the same output."""
        if len(signature.outputs) != 1 or len(signature.outputs[0].shape) != 4:
            return OTHERS
        [output] = signature.outputs
        evidence = signature.at_stride(output.shape[2:], 16)
        classes = signature.count_classes(output.shape[1], 5)
        if isinstance(evidence, str) or isinstance(classes, str):
            return OTHERS
        why = f"{evidence[1]}; {counted(classes, 'class')}"
        return Fit((output.name,), classes, why, Strength.RARE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if objectness or class scores are not probabilities.
        """
        table = self.columns(outputs)
        assert table is not None, "rows are not ranked"
        if (reason := no_probabilities(table[:1].T) or no_probabilities(table[5:].T, 5)) is None:
            shares = no_shares(table[5:].T)
            reason = shares and f"classes: {shares}"
        return reason

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        assert self.size is not None, "it is sized"
        table = outputs[self.outputs[0]][row]
        # objectness^.6 is an upper bound of the score, because class probabilities are at most 1.
        y, x = np.nonzero(table[0] >= options.conf ** (1 / _OBJECTNESS))
        few = table[:, y, x].astype(np.float32)
        cell = np.stack([x, y]) + np.tanh(few[1:3])
        centre = cell / np.array(table.shape[:0:-1], np.float32)[:, None]
        size = 1 / (1 + np.exp(-few[3:5]))
        height, width = self.size
        pixels = np.array([[width], [height]] * 2, np.float32)
        boxes = corners((np.concatenate([centre, size]) * pixels).T)
        scores = few[0] ** _OBJECTNESS * few[5:].max(axis=0) ** _CLASS
        return detections(boxes, scores, few[5:].argmax(axis=0), options)

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the map of the first image, [columns, cells]."""
        table: Array = outputs[self.outputs[0]][0]
        return table.reshape(len(table), -1)


class YoloFastestV2(Detector):
    """Decodes maps [batch, rows, columns, 15 + classes], the finest first.

    A cell has x y w h for each of three anchors, an objectness for each anchor, and a softmax over
    the classes.

    Attributes:
        anchors: width and height in pixels of each anchor of each level, from the checkpoint that
            was trained on COCO.
    """

    family = "yolo-fastestv2"
    duplicates = True
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "channels": "BGR"}
    anchors: ClassVar[tuple[float, ...]] = (
        *(12.64, 19.39, 37.88, 51.48, 55.71, 138.31),
        *(126.91, 78.23, 131.57, 214.55, 279.92, 258.87),
    )

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for two maps at the two strides. The columns must be the last dimension."""
        shapes = [tensor.shape for tensor in signature.outputs]
        if len(shapes) != 2 or any(len(shape) != 4 for shape in shapes):
            return OTHERS
        fits = [
            signature.at_stride(shape[1:3], stride)
            for shape, stride in zip(shapes, _STRIDES, strict=True)
        ]
        if shapes[0][3] != shapes[1][3] or any(isinstance(each, str) for each in fits):
            return OTHERS
        if isinstance(classes := signature.count_classes(shapes[0][3], _OTHERS), str):
            return classes
        strengths, reasons = zip(*(each for each in fits if not isinstance(each, str)), strict=True)
        why = f"{'; '.join(reasons)}; {counted(classes, 'class')}; COCO's anchors"
        unsure = None
        if classes != _COCO:
            unsure = "its anchors may differ from COCO's, and the file does not contain them"
        names = tuple(tensor.name for tensor in signature.outputs)
        # The fit is never stronger than SHAPE, because many models have two such maps.
        return Fit(names, classes, why, min(*strengths, Strength.SHAPE), unsure=unsure)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are before their sigmoid, or classes are not a softmax.
        """
        rows = np.concatenate([self._rows(outputs[name][0]) for name in self.outputs])
        if (reason := no_probabilities(rows[:, :_OTHERS])) is not None:
            return reason
        shares = no_shares(rows[:, _OTHERS:])
        return shares and f"classes: {shares}"

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        boxes, scores, class_ids = [], [], []
        anchors = np.array(self.anchors, np.float32).reshape(len(_STRIDES), _ANCHORS, 2)
        for name, stride, sides in zip(self.outputs, _STRIDES, anchors, strict=True):
            level = outputs[name][row]
            # The objectness is an upper bound of the score, because class probabilities are at most
            # 1.
            y, x, anchor = np.nonzero(level[..., _BOXES:_OTHERS] >= options.conf)
            cells = level[y, x].astype(np.float32)
            kinds = np.arange(len(anchor)), anchor
            few = cells[:, :_BOXES].reshape(-1, _ANCHORS, 4)[kinds]
            place: NDArray[np.float32] = np.stack([x, y], axis=1).astype(np.float32)
            centre = (2 * few[:, :2] - np.float32(0.5) + place) * np.float32(stride)
            size = (2 * few[:, 2:]) ** 2 * sides[anchor]
            boxes.append(corners(np.concatenate([centre, size], axis=1)))
            classes = cells[:, _OTHERS:]
            scores.append(cells[:, _BOXES:_OTHERS][kinds] * classes.max(axis=1))
            class_ids.append(classes.argmax(axis=1))
        joined = np.concatenate(boxes), np.concatenate(scores), np.concatenate(class_ids)
        return detections(*joined, options)

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the values of all cells for the first image, [columns, cells]."""
        table: Array = np.concatenate([self._rows(outputs[name][0]) for name in self.outputs])
        return table.T

    @staticmethod
    def _rows(level: Array) -> Array:
        rows: Array = level.reshape(-1, level.shape[-1])
        return rows


HEADS: tuple[type[Head], ...] = (FastestDet, YoloFastestV2)
