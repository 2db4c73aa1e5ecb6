"""Decodes CenterFace, a detector of faces: heat, sizes, offsets and landmarks at stride 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.evidence import far_off, no_logarithms
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.detect.skeleton import FACE
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes


class CenterFace(ScoredBoxes):
    """Decodes probabilities, log h w in cells and offsets y x in cells, [batch, 1 or 2, h, w].

    Follows CenterFace (arXiv 1911.03599): of height and width, and of y and x, it has the vertical
    one first, and offsets are from the middle of a cell.
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
        """Exclude other scores, sizes and offsets."""
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        [(_, values, _)] = self.levels(outputs, 0)
        if (reason := far_off(values[:, 2:])) is not None:
            return f"of the offsets, {reason}"
        return no_logarithms(values[:, :2], 0)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return the only level: score, log h w and offset y x, landmarks."""
        maps = [outputs[name][row] for name in self.outputs]
        heat, sizes, offsets, points = (each.reshape(len(each), -1).T for each in maps)
        return [(heat, np.concatenate([sizes, offsets], axis=1), points)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        places, strides = self.cells(found)
        centre = (places + 0.5 + values[:, 3:1:-1]) * strides
        size = np.exp(values[:, 1::-1]) * strides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points, y x as fractions of their box."""
        first, last = boxes[:, None, :2], boxes[:, None, 2:]
        return first + values.reshape(-1, 5, 2)[..., ::-1] * (last - first)
