"""Decodes scores and boxes that are separate outputs.

There is either one pair of outputs for all levels of the grid, or one pair for each level.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, keypoints
from fovea_engines.heads.dense import best_class
from fovea_engines.heads.evidence import no_probabilities, usual
from fovea_engines.heads.grid import grid, movement
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array

Level = tuple[Array, ...]
"""The outputs of one level for one image.

They are scores [boxes, classes], encoded boxes [boxes, n], and in some models encoded landmarks
[boxes, m].
"""


# Smallest score of a cell that counts as having found an object.
_SURE = 0.5


class ScoredBoxes(Detector):
    """Decodes levels of scores and boxes, the finest first.

    Attributes:
        strides: strides of the levels in pixels.
        per_cell: number of boxes of each cell.
    """

    duplicates = True
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32)
    per_cell: ClassVar[int] = 1

    @abstractmethod
    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return the levels of one image."""

    @abstractmethod
    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels.

        Args:
            values: float32 [n, columns], the encoded boxes.
            found: index of each box among the boxes of all levels.
        """

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return landmarks [n, k, 2] in pixels. Only heads with landmarks define this method.

        Args:
            values: float32 [n, columns], the encoded landmarks.
            boxes: float32 [n, 4], corners in pixels.
            found: index of each box among the boxes of all levels.
        """
        raise NotImplementedError

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities of a detector's classes.
        """
        scores = np.concatenate([scores for scores, *_ in self.levels(outputs, 0)])
        reason = no_probabilities(scores) or usual(scores)
        return reason and f"scores: {reason}"

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        start, indices, parts = 0, [], []
        for level in self.levels(outputs, row):
            passing = np.flatnonzero(best_class(level[0].T) >= options.conf)
            indices.append(start + passing)
            parts.append([table[passing] for table in level])
            start += len(level[0])
        few, values, *landmarks = (
            np.concatenate(column).astype(np.float32, copy=False)
            for column in zip(*parts, strict=True)
        )
        found = np.concatenate(indices)
        boxes, scores, class_ids = self.boxes(values, found), few.max(axis=1), few.argmax(axis=1)
        kept = choose(boxes, scores, class_ids, options)
        objects = take(boxes, scores, class_ids, kept)
        if not landmarks:
            return objects
        places = self.landmarks(landmarks[0][kept], boxes[kept], found[kept])
        return replace(objects, keypoints=keypoints(places))

    def columns(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the first image's scores, encoded boxes and landmarks, [columns, boxes]."""
        tables = (np.concatenate(level, axis=1) for level in self.levels(outputs, 0))
        table: Array = np.concatenate([np.asarray(one) for one in tables])
        return table.T

    def moved(self, outputs: Mapping[str, Array]) -> float | None:
        """Return the result of `movement` for boxes with high scores in the first image."""
        assert self.size is not None, "it is sized"
        return movement(*self.sure(outputs), self.size, self.strides, self.per_cell)

    def sure(self, outputs: Mapping[str, Array]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the centres [n, 2] in pixels, and the indices, of boxes with high scores.

        The boxes belong to the first image of the batch.
        """
        levels = self.levels(outputs, 0)
        scores = np.concatenate([scores.max(axis=1) for scores, *_ in levels])
        found = np.flatnonzero(scores > _SURE)
        values = np.concatenate([level[1] for level in levels])[found]
        boxes = self.boxes(values.astype(np.float32, copy=False), found)
        return (boxes[:, :2] + boxes[:, 2:]) / np.float32(2), found

    def cells(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the column and row [n, 2] and the stride [n, 1] of the cell of each box."""
        assert self.size is not None, "it is sized"
        places, strides = grid(self.size, self.strides, self.per_cell)
        return places[found], strides[found]
