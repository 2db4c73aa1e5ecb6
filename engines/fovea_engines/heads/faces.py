"""Decodes face detectors. Most of them also find the eyes, the nose and the corners of the mouth.

    yunet         YuNet of 2023: cls, obj, bbox and kps [n, cells, 1, 1, 4 and 10] of three levels
    scrfd         SCRFD: score, distances and landmarks [n, 2 x cells, 1, 4 and 10] of three levels
    centerface    CenterFace: maps [n, 1, 2, 2 and 10, h, w] at stride 4
    yolov5-face   YOLOv5-face: [n, 3 x cells, 16] cx cy w h, objectness, landmarks, face
    ultraface     UltraFace: scores [n, boxes, 2] and x1 y1 x2 y2 as fractions [n, boxes, 4]
    blazeface     BlazeFace of MediaPipe: [n, boxes, 16] and logits [n, boxes, 1]; also ears

Detectors with prior boxes, as in SSD, are in `retinaface`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Head, corners
from fovea_engines.heads.evidence import (
    far_off,
    fractions,
    no_corners,
    no_distances,
    no_logarithms,
    no_logits,
    no_probabilities,
    no_shares,
    pixels,
)
from fovea_engines.heads.grid import around, grid, moving, off_grid
from fovea_engines.heads.scored_boxes import Level, ScoredBoxes
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength, cells
from fovea_engines.results.skeleton import FACE, Skeleton
from fovea_engines.session import Array

_YOLOV5_COLUMNS = 16
"""Number of columns: 2 for the centre, 2 for the size, objectness, 10 for landmarks, face."""

_ULTRA_BOXES = {8: 3, 16: 2, 32: 2, 64: 3}
"""Stride in pixels -> number of boxes per cell."""

_BLAZE_BOXES = {128: {8: 2, 16: 6}, 192: {4: 1}, 256: {16: 2, 32: 6}}
"""Side of the input -> stride -> number of boxes per cell.

The models are MediaPipe's short-range, full-range and back-camera detectors.
"""

_BLAZE_NAMES = ("regressors", "classificators")


class YuNet(ScoredBoxes):
    """Decodes offsets x y in cells, and logarithms of w h in strides.

    The score is the class probability times the objectness, as in the YuNet paper (Machine
    Intelligence Research 20, 2023). OpenCV's FaceDetectorYN uses the square root of this score, so
    a threshold of t in OpenCV corresponds to a threshold of t x t here.
    """

    family = "yunet"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        "scale": 1.0,
    }
    sized = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the output names that OpenCV expects."""
        kinds = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
        names = [f"{kind}_{stride}" for kind in kinds for stride in cls.strides]
        if isinstance(found := signature.named(*names), str):
            return found
        columns = [count for count in kinds.values() for _ in cls.strides]
        for tensor, count in zip(found, columns, strict=True):
            if len(tensor.shape) != 3 or tensor.shape[2] not in (-1, count):
                return (
                    f"{tensor.name} has {tensor.shape[2]} numbers for each box, instead of {count}"
                )
        boxes = [tensor.shape[1] for tensor in found[:3]]
        if isinstance(evidence := signature.on_levels(boxes, cls.strides), str):
            return evidence
        why = f"{evidence[1]}; the names are YuNet's"
        return Fit(tuple(names), 1, why, Strength.NAMES, FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or boxes move with their cells.
        """
        return super().contradiction(outputs) or moving(self.moved(outputs))

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return scores, boxes and landmarks of each level."""
        tensors = [outputs[name][row] for name in self.outputs]
        parts = zip(*(tensors[at : at + 3] for at in range(0, 12, 3)), strict=True)
        return [(face * objectness, box, points) for face, objectness, box, points in parts]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        places, strides = self.cells(found)
        centre, size = (places + values[:, :2]) * strides, np.exp(values[:, 2:]) * strides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, 5, 2] in pixels. The model computes offsets from the cells' corners."""
        places, strides = self.cells(found)
        return (places[:, None] + values.reshape(-1, 5, 2)) * strides[:, None]


class Scrfd(ScoredBoxes):
    """Decodes a score and four distances in strides for each anchor. A cell has two anchors.

    The distances are from the corner of the cell to the sides of the box (SCRFD, arXiv 2105.04714).
    If the exporter fixed the batch size at 1, the outputs have no batch axis.
    """

    family = "scrfd"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (128.0, 128.0, 128.0),
    }
    sized = True
    per_cell = 2

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for scores, boxes and perhaps landmarks of three levels. Names do not matter."""
        scores, boxes, points = (signature.by_columns(columns) for columns in (1, 4, 10))
        levels = len(cls.strides)
        if not len(scores) == len(boxes) == levels or len(points) not in (0, levels):
            return OTHERS
        ranks = {len(tensor.shape) for tensor in signature.outputs}
        if len(signature.outputs) > 3 * levels or ranks not in ({2}, {3}):
            return OTHERS
        counts = [tensor.shape[-2] for tensor in scores]
        if counts != [tensor.shape[-2] for tensor in boxes]:
            return OTHERS
        if isinstance(evidence := signature.on_levels(counts, cls.strides, cls.per_cell), str):
            return evidence
        strength, why = evidence
        names = tuple(tensor.name for tensor in (*scores, *boxes, *points))
        usual = [f"{kind}_{s}" for kind in ("score", "bbox", "kps") for s in cls.strides]
        if list(names) == usual[: len(names)]:
            strength, why = Strength.NAMES, f"{why}; the names are SCRFD's"
        return Fit(names, 1, why, strength, FACE if points else None)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or distances are in pixels.
        """
        reason = super().contradiction(outputs)
        distances = [level[1] for level in self.levels(outputs, 0)]
        return reason or no_distances(np.concatenate(distances)) or moving(self.moved(outputs))

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield all outputs without the batch axis. Some exports do not have this axis."""
        for name in self.outputs:
            tensor = outputs[name]
            yield f"output {name}", tensor if tensor.ndim == 2 else tensor[row]

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return scores, distances and optional landmarks of each level."""
        one = [values for _, values in self.numbers(outputs, row)]
        return list(zip(*(one[at : at + 3] for at in range(0, len(one), 3)), strict=True))

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels of boxes around the corners of their cells."""
        places, strides = self.cells(found)
        return around(places * strides, values * strides)

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, 5, 2] in pixels. The model computes distances from cells' corners."""
        places, strides = self.cells(found)
        return (places[:, None] + values.reshape(-1, 5, 2)) * strides[:, None]


class CenterFace(ScoredBoxes):
    """Decodes maps [batch, 1 or 2, h, w] of probabilities, logarithms of h w, and offsets y x.

    The method is CenterFace (arXiv 1911.03599). Sizes and offsets are in cells, and the vertical
    number comes first. An offset is the distance from the middle of a cell.
    """

    family = "centerface"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "scale": 1.0}
    sized = True
    strides = (4,)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for four maps at stride 4, in the order of the only exporter."""
        shapes = [tensor.shape for tensor in signature.outputs]
        if [shape[1] for shape in shapes if len(shape) == 4] != [1, 2, 2, 10]:
            return OTHERS
        places = {shape[2:] for shape in shapes}
        if len(shapes) != 4 or len(places) != 1:
            return OTHERS
        if isinstance(evidence := signature.at_stride(places.pop(), *cls.strides), str):
            return evidence
        names = tuple(tensor.name for tensor in signature.outputs)
        return Fit(names, 1, evidence[1], evidence[0], FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores, sizes or offsets are outside their valid range.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        [(_, values, _)] = self.levels(outputs, 0)
        if (reason := far_off(values[:, 2:])) is not None:
            return f"offsets: {reason}"
        return no_logarithms(values[:, :2], 0)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return the only level: scores, log h w with offsets y x, and landmarks."""
        maps = [outputs[name][row] for name in self.outputs]
        heat, sizes, offsets, points = (each.reshape(len(each), -1).T for each in maps)
        return [(heat, np.concatenate([sizes, offsets], axis=1), points)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        places, strides = self.cells(found)
        centre = (places + 0.5 + values[:, 3:1:-1]) * strides
        size = np.exp(values[:, 1::-1]) * strides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, 5, 2] in pixels. The model computes y x as fractions of the box."""
        first, last = boxes[:, None, :2], boxes[:, None, 2:]
        return first + values.reshape(-1, 5, 2)[..., ::-1] * (last - first)


class YoloV5Face(ScoredBoxes):
    """Decodes columns cx cy w h in pixels of the input.

    The score is the objectness times the probability of a face.
    """

    family = "yolov5-face"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    per_cell = 3

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for 16 columns. A YOLOv5 detector with eleven classes has as many columns."""
        output = signature.single()
        if isinstance(output, str) or output.shape[2] != _YOLOV5_COLUMNS:
            return OTHERS
        fit = signature.fit_grid(axis=2, per_cell=cls.per_cell, others=_YOLOV5_COLUMNS - 1)
        return fit if isinstance(fit, str) else replace(fit, strength=Strength.RARE, skeleton=FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or landmarks could be classes.
        """
        rows = outputs[self.outputs[0]][0]
        points = rows[rows[:, 4] > 0, 5:15]
        if (reason := fractions(points)) is not None:
            return f"landmarks: {reason}"
        return (
            no_probabilities(rows[:, 4:5], 4)
            or no_probabilities(rows[:, 15:], 15)
            or off_grid(rows[:, :4], corners=False)
        )

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level, which holds the boxes of all levels."""
        rows = outputs[self.outputs[0]][row]
        return [(rows[:, 4:5] * rows[:, 15:], rows[:, :4], rows[:, 5:15])]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        return corners(values)

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, 5, 2]. The model already computes them in pixels."""
        return values.reshape(-1, 5, 2)


class UltraFace(ScoredBoxes):
    """Decodes a softmax of background and face [batch, boxes, 2] and corners [batch, boxes, 4]."""

    family = "ultraface"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "scale": 1.0,
        "mean": (127.0, 127.0, 127.0),
        "std": (128.0, 128.0, 128.0),
    }
    sized = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for both outputs, with a row for each box. Levels have 2 or 3 boxes per cell."""
        boxes, scores = signature.by_columns(4), signature.by_columns(2)
        if len(signature.outputs) != 2 or len(boxes) != 1 or len(scores) != 1:
            return OTHERS
        ranks = {len(tensor.shape) for tensor in signature.outputs}
        counts = {tensor.shape[-2] for tensor in signature.outputs}
        if ranks != {3} or len(counts) != 1:
            return OTHERS
        names, [count] = (boxes[0].name, scores[0].name), counts
        if signature.size is None or count == -1:
            return Fit(names, 1, "a dynamic number of boxes", Strength.POSSIBLE)
        if count != sum(
            per * cells(signature.size, (stride,)) for stride, per in _ULTRA_BOXES.items()
        ):
            return OTHERS
        size = f"{signature.size[0]}x{signature.size[1]}"
        return Fit(names, 1, f"UltraFace has {count} boxes at {size}", Strength.SHAPE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not a softmax or boxes do not have the form that this
        head expects.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        boxes, scores = (outputs[name][0] for name in self.outputs)
        if (reason := no_shares(scores)) is not None:
            return f"scores: {reason}"
        return pixels(boxes) or no_corners(boxes)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level, which holds the boxes of all levels."""
        boxes, scores = (outputs[name][row] for name in self.outputs)
        return [(scores[:, 1:], boxes)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        assert self.size is not None, "it is sized"
        height, width = self.size
        return values * np.array([width, height, width, height], np.float32)


class BlazeFace(ScoredBoxes):
    """Decodes x y w h and six points [batch, boxes, 16], and a logit [batch, boxes, 1].

    Positions are in pixels from the middle of a cell (arXiv 1907.05047, and MediaPipe's
    face_detection). MediaPipe returns the average of all boxes of a face, weighted by their scores.
    This head returns the best box.
    """

    family = "blazeface"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "pad": 0,
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (127.5, 127.5, 127.5),
    }
    sized = True
    points: ClassVar[Skeleton] = Skeleton(
        ("right eye", "left eye", "nose", "mouth", "right ear", "left ear")
    )

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for both outputs. Their number of boxes must be the one of a known input size."""
        boxes, scores = signature.by_columns(16), signature.by_columns(1)
        if len(signature.outputs) != 2 or len(boxes) != 1 or len(scores) != 1:
            return OTHERS
        shapes = boxes[0].shape, scores[0].shape
        if any(len(shape) != 3 for shape in shapes) or signature.size is None:
            return OTHERS
        counts = {shape[1] for shape in shapes} - {-1}
        height, width = signature.size
        expected = _count(signature.size) if height == width and width in _BLAZE_BOXES else 0
        if counts != {expected}:
            return OTHERS
        names = boxes[0].name, scores[0].name
        strength = Strength.NAMES if names == _BLAZE_NAMES else Strength.SHAPE
        why = f"BlazeFace has {expected} boxes at {height}x{width}"
        return Fit(names, 1, why, strength, cls.points)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are after a sigmoid, or if `ScoredBoxes` finds a reason.
        """
        if (reason := no_logits(outputs[self.outputs[1]][0])) is not None:
            return f"scores: {reason}"
        return super().contradiction(outputs)

    @np.errstate(over="ignore")
    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level, which holds the boxes of all levels."""
        values, logits = (outputs[name][row] for name in self.outputs)
        scores = 1 / (1 + np.exp(-logits.astype(np.float32, copy=False)))
        return [(scores, values[:, :4], values[:, 4:])]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        centres = self._middles(found) + values[:, :2]
        return corners(np.concatenate([centres, values[:, 2:]], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, 6, 2] in pixels. The model computes offsets from cells' middles."""
        return self._middles(found)[:, None] + values.reshape(-1, len(self.points.names), 2)

    def _middles(self, found: NDArray[np.intp]) -> NDArray[np.float32]:
        assert self.size is not None, "it is sized"
        return _all_middles(self.size)[found]


def _count(size: tuple[int, int]) -> int:
    return sum(per * cells(size, (stride,)) for stride, per in _BLAZE_BOXES[size[0]].items())


@lru_cache(maxsize=8)
def _all_middles(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return the middle of each box's cell, [n, 2] in pixels."""
    levels = [grid(size, (stride,), per) for stride, per in _BLAZE_BOXES[size[0]].items()]
    return np.concatenate([(places + 0.5) * strides for places, strides in levels])


HEADS: tuple[type[Head], ...] = (YuNet, Scrfd, CenterFace, YoloV5Face, UltraFace, BlazeFace)
