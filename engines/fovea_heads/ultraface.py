"""Decodes UltraFace, a detector of faces: scores, and boxes as fractions of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.evidence import no_corners, no_shares, pixels
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength, cells
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes

PRIORS = {8: 3, 16: 2, 32: 2, 64: 3}
"""Boxes of a cell by stride."""


class UltraFace(ScoredBoxes):
    """Decodes softmax of background and face [batch, boxes, 2] and corners [batch, boxes, 4]."""

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
        """Check for both tensors, over a grid whose levels have different numbers of boxes."""
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
        if count != sum(per * cells(signature.size, (stride,)) for stride, per in PRIORS.items()):
            return OTHERS
        size = f"{signature.size[0]}x{signature.size[1]}"
        return Fit(names, 1, f"{count} boxes are those of UltraFace at {size}", Strength.SHAPE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are no softmax, and boxes of another form."""
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        boxes, scores = (outputs[name][0] for name in self.outputs)
        if (reason := no_shares(scores)) is not None:
            return f"of the scores, {reason}"
        return pixels(boxes) or no_corners(boxes)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        boxes, scores = (outputs[name][row] for name in self.outputs)
        return [(scores[:, 1:], boxes)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners in pixels."""
        assert self.size is not None, "it is sized"
        height, width = self.size
        return values * np.array([width, height, width, height], np.float32)
