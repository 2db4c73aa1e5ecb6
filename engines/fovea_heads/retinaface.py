"""Decodes RetinaFace, a detector of faces: offsets from prior boxes, scores and landmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.evidence import no_logarithms, no_shares
from fovea_engines.detect.heads.grid import moving, no_offsets
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength, cells
from fovea_engines.detect.skeleton import FACE, Skeleton
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes

# Less than between the sides of priors that are published, and more than in trained detectors.
_MOVES = 0.25
# Priors that are published have at most 2.5 times the sides of others. Further off, the boxes do
# not follow any object: as where a model sees nothing and says the same of all cells.
_MOST_TIMES = 4.0

CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
"""Factors of the offsets, which SSD's implementation has beside its paper (arXiv 1512.02325)."""


class RetinaFace(ScoredBoxes):
    """Decodes offsets [batch, priors, 4] and softmax of background and face [batch, priors, 2].

    A centre is prior + .1 x offset x side, and a size is side x exp(.2 x offset).

    Attributes:
        priors: sides of the square priors of each stride, pixels, as many of each (RetinaFace,
            arXiv 1905.00641, with the MobileNet backbone of its PyTorch version).
        points: the landmarks.
    """

    family = "retinaface"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        "scale": 1.0,
        "mean": (104.0, 117.0, 123.0),
    }
    guessed = "programs that use RetinaFace pad, or stretch, each in its own way"
    variants = ("stretched",)
    sized = True
    per_cell = 2
    priors: ClassVar[tuple[tuple[int, ...], ...]] = ((16, 32), (64, 128), (256, 512))
    points: ClassVar[Skeleton] = FACE

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for offsets, scores and landmarks, whatever their names."""
        found = [signature.by_columns(columns) for columns in (4, 2, 2 * len(cls.points.names))]
        if len(signature.outputs) != 3 or any(len(tensors) != 1 for tensors in found):
            return OTHERS
        (offsets,), (scores,), (points,) = found
        if any(len(tensor.shape) != 3 for tensor in signature.outputs):
            return OTHERS
        boxes, *others = {tensor.shape[1] for tensor in signature.outputs}
        if others:
            return OTHERS
        if isinstance(evidence := cls.on_levels(signature, boxes), str):
            return evidence
        names = offsets.name, scores.name, points.name
        sides = ", ".join(" and ".join(map(str, each)) for each in cls.priors)
        why = f"{evidence[1]}, with priors of {sides} pixels"
        return Fit(names, 1, why, evidence[0], cls.points)

    @classmethod
    def on_levels(cls, signature: Signature, boxes: int) -> tuple[Strength, str] | str:
        """Return how surely a number of boxes is that of the priors, as `Signature.on_levels`."""
        return signature.on_levels([boxes], cls.strides, cls.per_cell)

    def firsts(self, offsets: Array) -> Array:
        """Return the offsets of the first prior of each cell."""
        first: Array = offsets[:: self.per_cell]
        return first

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are no softmax, and sizes that are no logarithms."""
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        offsets, scores, _ = (outputs[name][0] for name in self.outputs)
        if (reason := no_shares(scores)) is not None:
            return f"of the scores, {reason}"
        reason = no_logarithms(offsets[:, 2:], 2) or no_offsets(self.firsts(offsets)[:, :2], 0)
        return reason or self._other_priors(self.times(outputs))

    def _other_priors(self, times: float | None) -> str | None:
        moved = None if times is None else 1 - 1 / times
        if (reason := moving(moved, _MOVES)) is None:
            return None
        return f"{reason}, so that the sides of its priors are {times:.2g} times these"

    def times(self, outputs: Mapping[str, Array]) -> float | None:
        """Return how many times these the sides of the model's priors are; None if nothing tells.

        As `movement` says, the centres of neighbouring cells that find the same move by 1 - 1 / it.
        """
        moved = self.moved(outputs)
        share = None if moved is None else 1 - moved
        if share is None or not 1 / _MOST_TIMES <= share <= _MOST_TIMES:
            return None
        return 1 / share

    def tells(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether there is a face, which tells one family's priors from another's."""
        return self.times(outputs) is not None

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        offsets, scores, points = (outputs[name][row] for name in self.outputs)
        return [(scores[:, 1:], offsets, points)]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        middles, sides = self._priors(found)
        centre = middles + CENTRE_VARIANCE * values[:, :2] * sides
        size = np.exp(SIZE_VARIANCE * values[:, 2:]) * sides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points by their offsets from the centres of priors, as those of boxes."""
        middles, sides = self._priors(found)
        offsets = CENTRE_VARIANCE * values.reshape(-1, len(self.points.names), 2)
        return middles[:, None] + offsets * sides[:, None]

    def _priors(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return centre [n, 2] and side [n, 1] of prior boxes, pixels."""
        assert self.size is not None, "it is sized"
        places, strides = self.cells(found)
        return (places + 0.5) * strides, _sides(self.size, self.strides, self.priors)[found]


class RetinaFace1Mb(RetinaFace):
    """Decodes the detectors of Face-Detector-1MB-with-landmark, whose priors are smaller."""

    family = "retinaface-1mb"
    priors = ((10, 20), (32, 64), (128, 256))


class RetinaPlate(RetinaFace):
    """Decodes RetinaFace for licence plates, with their corners: Pytorch_Retina_License_Plate.

    The corners are in the order of CCPD's annotations (ECCV 2018), of which it is trained.
    """

    family = "retinaface-plate"
    labels = ("plate",)
    points = Skeleton(
        ("bottom right", "bottom left", "top left", "top right"), ((0, 1), (1, 2), (2, 3), (3, 0))
    )


class RetinaPlateLarge(RetinaPlate):
    """Decodes the detectors of License-Plate-Detector (zeusees), whose priors are larger."""

    family = "retinaface-plate-large"
    priors = ((24, 48), (96, 192), (384, 768))


@lru_cache(maxsize=64)
def _sides(
    size: tuple[int, int], strides: tuple[int, ...], priors: tuple[tuple[int, ...], ...]
) -> NDArray[np.float32]:
    """Return the side [n, 1] of each prior for an input of (height, width) pixels."""
    by_level = zip(strides, priors, strict=True)
    levels = [np.tile(sides, cells(size, (stride,))) for stride, sides in by_level]
    return np.concatenate(levels).astype(np.float32)[:, None]
