"""Decodes YuNet, a detector of faces: class, objectness, box and landmarks of each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.scored_boxes import Level, ScoredBoxes
from fovea_engines.detect.heads.signature import Fit, Signature, Strength
from fovea_engines.detect.skeleton import FACE
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class YuNet(ScoredBoxes):
    """Decodes columns offset x y in cells, log w h in strides; the score is class x objectness.

    Follows the YuNet paper (Machine Intelligence Research 20, 2023). OpenCV's FaceDetectorYN scores
    with the square root of that product: its threshold t is the threshold t x t here.
    """

    family: ClassVar[str] = "yunet"
    labels: ClassVar[tuple[str, ...]] = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        "scale": 1.0,
    }
    sized: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the names that OpenCV asks for."""
        kinds = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
        names = [f"{kind}_{stride}" for kind in kinds for stride in cls.strides]
        if isinstance(found := signature.named(*names), str):
            return found
        columns = [count for count in kinds.values() for _ in cls.strides]
        for tensor, count in zip(found, columns, strict=True):
            if len(tensor.shape) != 3 or tensor.shape[2] not in (-1, count):
                return f"its {tensor.name} has {count} numbers a box, not {tensor.shape[2]}"
        boxes = [tensor.shape[1] for tensor in found[:3]]
        if isinstance(evidence := signature.on_levels(boxes, cls.strides), str):
            return evidence
        why = f"{evidence[1]}; the names are YuNet's"
        return Fit(tuple(names), 1, why, Strength.NAMES, FACE)

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return score, box and landmarks of each level."""
        tensors = [outputs[name][row] for name in self.outputs]
        parts = zip(*(tensors[at : at + 3] for at in range(0, 12, 3)), strict=True)
        return [(face * objectness, box, points) for face, objectness, box, points in parts]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        places, strides = self.cells(found)
        centre, size = (places + values[:, :2]) * strides, np.exp(values[:, 2:]) * strides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points by their offsets from the corners of their cells."""
        places, strides = self.cells(found)
        return (places[:, None] + values.reshape(-1, 5, 2)) * strides[:, None]
