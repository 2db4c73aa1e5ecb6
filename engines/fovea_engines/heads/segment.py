"""Decodes YOLO segmentation models.

They return objects, and masks that several objects share (prototypes).

    yolov8-seg    YOLOv8, 9, 11, 12: [n, 4 + classes + k, cells]
    yolov5-seg    YOLOv5, v7: [n, 3 x cells, 5 + classes + k]
    yolov10-seg   YOLO26, exports of Ultralytics with nms=True: [n, rows, 6 + k]

All these models also return k prototypes [n, k, h, w] that cover the whole input. The mask of an
object is a weighted sum of the prototypes, and each object has its own k weights (YOLACT, arXiv
1904.02689).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Head
from fovea_engines.heads.dense import Dense
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.signature import OTHERS, Fit, Signature
from fovea_engines.heads.yolo_dense import YoloV5, YoloV8
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Masks
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec


class _Segmenter(Detector):
    """Decodes models whose last output has the prototypes."""

    task = "segment"
    sized = True

    def tables(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the columns of the boxes, and the prototypes, by name."""
        first: Array = outputs[self.outputs[-1]][0]
        rows = super().tables(outputs)
        return rows | {"prototypes": first.reshape(len(first), -1)}


class _DenseSegmenter(_Segmenter, Dense):
    """Decodes the columns of a detector, and then a column with a weight for each prototype."""

    extras = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the output of a detector with more columns, and for prototypes."""
        if isinstance(found := _rows_and_prototypes(signature), str):
            return found
        rows, prototypes = found
        fit = signature.fit_grid(
            axis=cls.layout.axis,
            per_cell=cls.per_cell,
            others=cls.layout.classes + prototypes.shape[1],
            output=rows,
        )
        return fit if isinstance(fit, str) else _add_prototypes(fit, prototypes.name)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        rows, prototypes = (outputs[name][row] for name in self.outputs)
        found, weights = self.objects(rows, options)
        if options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        masks = prototype_masks(prototypes, weights, found.boxes, self.size)
        return replace(found, masks=masks)


class YoloV8Segment(_DenseSegmenter, YoloV8):
    """Decodes segmentation models of YOLOv8, v9, v11, v12 and v26."""

    family = "yolov8-seg"


class YoloV5Segment(_DenseSegmenter, YoloV5):
    """Decodes segmentation models of YOLOv5 and v7."""

    family = "yolov5-seg"


class YoloV10Segment(_Segmenter, YoloV10):
    """Decodes segmentation with suppression in the graph: YOLOv26, and exports that include NMS."""

    family = "yolov10-seg"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows [batch, k, 6 + prototypes], and for prototypes."""
        if isinstance(found := _rows_and_prototypes(signature), str):
            return found
        rows, prototypes = found
        fit = cls.fit_rows(signature, rows, prototypes.shape[1])
        return fit if isinstance(fit, str) else _add_prototypes(fit, prototypes.name)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the rows without padding, and the prototypes."""
        yield from super().numbers(outputs, row)
        yield f"output {self.outputs[1]}", outputs[self.outputs[1]][row]

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        table, prototypes = (outputs[name][row] for name in self.outputs)
        found, numbers = self.objects(self.split(table), options)
        if options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        weights = table[numbers, 6:].astype("float32", copy=False)
        masks = prototype_masks(prototypes, weights, found.boxes, self.size)
        return replace(found, masks=masks)


def _add_prototypes(fit: Fit, prototypes: str) -> Fit:
    why = f"{fit.why}; {prototypes} has the prototypes of masks"
    return replace(fit, outputs=(*fit.outputs, prototypes), why=why)


def _rows_and_prototypes(signature: Signature) -> tuple[TensorSpec, TensorSpec] | str:
    """Return the output of objects [batch, m, n] and the prototypes [batch, k, h, w].

    If the model does not have these outputs, return the reason.
    """
    rows = [tensor for tensor in signature.outputs if len(tensor.shape) == 3]
    maps = [tensor for tensor in signature.outputs if len(tensor.shape) == 4]
    if len(rows) != 1 or len(maps) != 1 or len(signature.outputs) != 2:
        return OTHERS
    if maps[0].shape[1] < 1:
        return f"{maps[0].name} has a dynamic number of prototypes"
    return rows[0], maps[0]


@np.errstate(invalid="ignore", over="ignore")
def prototype_masks(
    prototypes: Array,
    coefficients: NDArray[np.float32],
    boxes: NDArray[np.float32],
    size: tuple[int, int],
) -> Masks:
    """Return the masks of objects: weighted sums of prototypes inside the boxes.

    Args:
        prototypes: [k, h, w], prototypes that cover the whole input.
        coefficients: float32 [n, k], weights of the prototypes for each object.
        boxes: float32 [n, 4], corners in pixels of the input.
        size: (height, width) of the input in pixels.
    """
    height, width = prototypes.shape[1:]
    pixels = np.array([size[1] / width, size[0] / height] * 2)
    cells = boxes / pixels
    # Include the cells next to a box: the pixels at the edge of the box are interpolated between
    # the centres of cells inside and outside.
    first = np.clip(np.floor(cells[:, :2]) - 1, 0, [width, height]).astype(int)
    last = np.clip(np.ceil(cells[:, 2:]) + 1, first, [width, height]).astype(int)
    windows = []
    for weights, (x1, y1), (x2, y2) in zip(
        coefficients, first.tolist(), last.tolist(), strict=True
    ):
        part = prototypes[:, y1:y2, x1:x2]
        sums = weights @ part.reshape(len(part), part[0].size)
        windows.append(sums.reshape(part.shape[1:]).astype(np.float32, copy=False))
    places = np.concatenate([first, last], axis=1) * pixels
    return Masks(tuple(windows), places, boxes.astype(np.float64), size)


HEADS: tuple[type[Head], ...] = (YoloV5Segment, YoloV8Segment, YoloV10Segment)
