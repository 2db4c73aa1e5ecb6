"""Decodes YOLOv5-face, a detector of faces: [batch, 3 x cells, 16]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.evidence import fractions, no_probabilities
from fovea_engines.detect.heads.grid import off_grid
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.skeleton import FACE
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes

COLUMNS = 16
"""Centre, size, objectness, five landmarks, face."""


class YoloV5Face(ScoredBoxes):
    """Decodes columns cx cy w h in pixels of the input; the score is objectness x face."""

    family = "yolov5-face"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    per_cell = 3

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for 16 columns, which a YOLOv5 of eleven classes has, too."""
        output = signature.single()
        if isinstance(output, str) or output.shape[2] != COLUMNS:
            return OTHERS
        fit = signature.fit_grid(axis=2, per_cell=cls.per_cell, others=COLUMNS - 1)
        return fit if isinstance(fit, str) else replace(fit, strength=Strength.RARE, skeleton=FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, and landmarks that could be classes."""
        rows = outputs[self.outputs[0]][0]
        points = rows[rows[:, 4] > 0, 5:15]
        if (reason := fractions(points)) is not None:
            return f"of the landmarks, {reason}"
        return (
            no_probabilities(rows[:, 4:5], 4)
            or no_probabilities(rows[:, 15:], 15)
            or off_grid(rows[:, :4], corners=False)
        )

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        rows = outputs[self.outputs[0]][row]
        return [(rows[:, 4:5] * rows[:, 15:], rows[:, :4], rows[:, 5:15])]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        return corners(values)

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points, which are in pixels."""
        return values.reshape(-1, 5, 2)
