"""Decodes BlazeFace, MediaPipe's detector of faces: offsets in pixels from cells, and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.grid import grid
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength, cells
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes

LEVELS = {128: {8: 2, 16: 6}, 192: {4: 1}, 256: {16: 2, 32: 6}}
"""Boxes of a cell, by stride, by the side of the input: of the short range, the full, the back."""

_NAMES = ("regressors", "classificators")


class BlazeFace(ScoredBoxes):
    """Decodes x y w h and six points [batch, boxes, 16], and a logit [batch, boxes, 1].

    All are pixels from the middle of a cell (arXiv 1907.05047, and MediaPipe's face_detection).
    MediaPipe blends boxes of one face by their scores; here the best is kept.
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
        """Check for both tensors, and as many boxes as an input of one of the sizes has."""
        boxes, scores = signature.by_columns(16), signature.by_columns(1)
        if len(signature.outputs) != 2 or len(boxes) != 1 or len(scores) != 1:
            return OTHERS
        shapes = boxes[0].shape, scores[0].shape
        if any(len(shape) != 3 for shape in shapes) or signature.size is None:
            return OTHERS
        counts = {shape[1] for shape in shapes} - {-1}
        height, width = signature.size
        expected = _count(signature.size) if height == width and width in LEVELS else 0
        if counts != {expected}:
            return OTHERS
        names = boxes[0].name, scores[0].name
        strength = Strength.NAMES if names == _NAMES else Strength.SHAPE
        why = f"{expected} boxes are those of BlazeFace at {height}x{width}"
        return Fit(names, 1, why, strength, cls.points)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores after a sigmoid."""
        if (reason := no_logits(outputs[self.outputs[1]][0])) is not None:
            return f"of the scores, {reason}"
        return super().contradiction(outputs)

    @np.errstate(over="ignore")
    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        values, logits = (outputs[name][row] for name in self.outputs)
        scores = 1 / (1 + np.exp(-logits.astype(np.float32, copy=False)))
        return [(scores, values[:, :4], values[:, 4:])]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        centres = self._middles(found) + values[:, :2]
        return corners(np.concatenate([centres, values[:, 2:]], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points by their offsets from the middles of cells."""
        return self._middles(found)[:, None] + values.reshape(-1, len(self.points.names), 2)

    def _middles(self, found: NDArray[np.intp]) -> NDArray[np.float32]:
        assert self.size is not None, "it is sized"
        return _all_middles(self.size)[found]


def _count(size: tuple[int, int]) -> int:
    return sum(per * cells(size, (stride,)) for stride, per in LEVELS[size[0]].items())


@lru_cache(maxsize=8)
def _all_middles(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return the middle [n, 2] of the cell of each box, pixels."""
    levels = [grid(size, (stride,), per) for stride, per in LEVELS[size[0]].items()]
    return np.concatenate([(places + 0.5) * strides for places, strides in levels])
