"""Decodes YuNet, a detector of faces: class, objectness, box and landmarks of each level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import corners
from fovea_engines.detect.heads.evidence import no_logarithms, no_shares
from fovea_engines.detect.heads.grid import moving
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.skeleton import FACE
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes

PRIORS_2021 = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
"""Sides of the square priors of each stride, pixels; odd rests of a map are dropped."""

_CENTRE, _SIZE = 0.1, 0.2
_NAMES_2021 = ("loc", "conf", "iou")


class YuNet(ScoredBoxes):
    """Decodes columns offset x y in cells, log w h in strides; the score is class x objectness.

    Follows the YuNet paper (Machine Intelligence Research 20, 2023). OpenCV's FaceDetectorYN scores
    with the square root of that product: its threshold t is the threshold t x t here.
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

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are none, and boxes that go with their cells."""
        return super().contradiction(outputs) or moving(self.moved(outputs))

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


class YuNet2021(ScoredBoxes):
    """Decodes YuNet of 2021: offsets [priors, 14], softmax [priors, 2] and overlap [priors, 1].

    Offsets are of SSD: a centre is prior + .1 x offset x side, a size is side x exp(.2 x offset),
    and five points follow as centres do. The score is the root of face x overlap. There is no
    batch. OpenCV's first FaceDetectorYN (4.5.4) has .1 in place of .2 for the width, so that its
    boxes have other widths.
    """

    family = "yunet-2021"
    labels = YuNet.labels
    preprocess = YuNet.preprocess
    sized = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the three tensors, and as many rows as there are priors."""
        found = signature.named(*_NAMES_2021)
        if isinstance(found, str):
            return found
        if [tensor.shape[1:] for tensor in found] != [(14,), (2,), (1,)]:
            return OTHERS
        counts = {tensor.shape[0] for tensor in found} - {-1}
        if signature.size is not None and counts - {len(_priors_2021(signature.size)[1])}:
            height, width = signature.size
            return f"{max(counts)} rows are not those of YuNet's priors at {height}x{width}"
        return Fit(_NAMES_2021, 1, "names and columns of YuNet of 2021", Strength.NAMES, FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude another number of rows, scores that are no softmax, and no logarithms."""
        assert self.size is not None, "it is sized"
        offsets, scores, _ = (outputs[name] for name in self.outputs)
        if (priors := len(_priors_2021(self.size)[1])) != len(offsets):
            return f"it has {len(offsets)} rows, and YuNet {priors} priors"
        if (reason := no_shares(scores)) is not None:
            return f"of the scores, {reason}"
        return no_logarithms(offsets[:, 2:4], 2)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield all numbers, which are of the one image."""
        for name in self.outputs:
            yield name, outputs[name]

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return all levels as one."""
        offsets, scores, overlap = (outputs[name] for name in self.outputs)
        face = (scores[:, 1:] * overlap.clip(0, 1)) ** 0.5
        return [(face, offsets[:, :4], offsets[:, 4:])]

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners."""
        middles, sides = self._priors(found)
        centre = middles + _CENTRE * values[:, :2] * sides
        return corners(np.concatenate([centre, np.exp(_SIZE * values[:, 2:]) * sides], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points by their offsets from the centres of priors."""
        middles, sides = self._priors(found)
        return middles[:, None] + _CENTRE * values.reshape(-1, 5, 2) * sides[:, None]

    def _priors(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        assert self.size is not None, "it is sized"
        middles, sides = _priors_2021(self.size)
        return middles[found], sides[found]


@lru_cache(maxsize=64)
def _priors_2021(size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return centre [n, 2] and side [n, 1], pixels, for an input of (height, width)."""
    # Each map is half of the one before it, rounded down, but for the first half.
    rows, columns = (((side + 1) // 2) // 2 for side in size)
    middles, sides = [], []
    for stride, priors in PRIORS_2021.items():
        rows, columns = rows // 2, columns // 2
        y, x = np.divmod(np.arange(rows * columns), max(columns, 1))
        places = (np.stack([x, y], axis=1) + 0.5) * stride
        middles.append(places.repeat(len(priors), axis=0).astype(np.float32))
        sides.append(np.tile(priors, rows * columns)[:, None].astype(np.float32))
    return np.concatenate(middles), np.concatenate(sides)
