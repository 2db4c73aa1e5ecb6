"""Defines the value that a detector returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Detections of one image, best first.

    Attributes:
        boxes: float32 [n, 4], corners x1 y1 x2 y2 in pixels: of the model's input as a head returns
            them, of the upright original after `LetterboxMap`.
        scores: float32 [n], 0 to 1, descending.
        class_ids: int32 [n].
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.scores)
