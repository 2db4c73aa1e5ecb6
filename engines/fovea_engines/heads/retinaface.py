"""Decodes RetinaFace, and YuNet of 2021: offsets from prior boxes, scores and landmarks.

A prior box is a fixed box around a cell. The model predicts how the real box differs from it.

    retinaface               priors of 16 to 512 pixels (RetinaFace, arXiv 1905.00641, with the
                             MobileNet backbone of its PyTorch version)
    retinaface-1mb           Face-Detector-1MB-with-landmark: smaller priors
    retinaface-slim          slim and RFB of that: four levels of three, two, two and three priors
    retinaface-plate         Pytorch_Retina_License_Plate: plates with their corners
    retinaface-plate-large   License-Plate-Detector (zeusees): larger priors
                             offsets [n, priors, 4], softmax of background and object [n, priors, 2]
                             and points [n, priors, 2 x points]
    yunet-2021               YuNet of 2021, without a batch: offsets of boxes and points
                             [priors, 14], softmax [priors, 2] and overlap [priors, 1]

As in SSD (arXiv 1512.02325), a centre is prior + .1 x offset x side, and a size is side x
exp(.2 x offset). Points are decoded like centres.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Head, corners
from fovea_engines.heads.evidence import no_logarithms, no_shares
from fovea_engines.heads.faces import YuNet
from fovea_engines.heads.grid import grid, movement, moving, no_offsets
from fovea_engines.heads.scored_boxes import Level, ScoredBoxes
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength, cells
from fovea_engines.results.skeleton import FACE, Skeleton
from fovea_engines.session import Array

# Largest result of `movement` for prior boxes of the right size. With the prior boxes of another
# published model, the result is larger.
_MOVES = 0.25
# Largest factor between the sides of prior boxes in a reason. The prior boxes of published models
# differ by a factor of at most 2.5. A larger factor shows that the boxes belong to no object, for
# example because a model finds nothing and returns the same values for all cells.
_MAX_TIMES = 4.0

# Factors of the offsets of centres and of sizes. They are in SSD's code, but not in its paper.
_CENTRE_VARIANCE, _SIZE_VARIANCE = 0.1, 0.2

_PRIORS_2021 = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
"""Stride -> sides of the square prior boxes, in pixels."""

_NAMES_2021 = ("loc", "conf", "iou")


class PriorBoxes(ScoredBoxes):
    """Decodes offsets from square prior boxes around the middles of cells.

    Attributes:
        points: names of the landmarks.
    """

    sized = True
    points: ClassVar[Skeleton] = FACE

    @abstractmethod
    def priors_of(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the centres [n, 2] and sides [n, 1] in pixels of the prior boxes `found`."""

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners [n, 4] in pixels. `ScoredBoxes.boxes` describes the arguments."""
        middles, sides = self.priors_of(found)
        centre = middles + _CENTRE_VARIANCE * values[:, :2] * sides
        size = np.exp(_SIZE_VARIANCE * values[:, 2:]) * sides
        return corners(np.concatenate([centre, size], axis=1))

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points [n, k, 2] in pixels, from offsets to the centres of the prior boxes."""
        middles, sides = self.priors_of(found)
        offsets = _CENTRE_VARIANCE * values.reshape(-1, len(self.points.names), 2)
        return middles[:, None] + offsets * sides[:, None]


class RetinaFace(PriorBoxes):
    """Decodes offsets [batch, priors, 4], softmax [batch, priors, 2] and landmarks.

    Attributes:
        priors: for each stride, the sides of its square prior boxes in pixels.
    """

    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        "scale": 1.0,
        "mean": (104.0, 117.0, 123.0),
    }
    guessed = "programs with RetinaFace letterbox or stretch images in different ways"
    variants = ("stretched",)
    per_cell = 2
    priors: ClassVar[tuple[tuple[int, ...], ...]]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for offsets, scores and landmarks. The names of the outputs do not matter."""
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
        """Check that the number of boxes is the number of prior boxes.

        `Signature.on_levels` describes the result.
        """
        return signature.on_levels([boxes], cls.strides, cls.per_cell)

    def firsts(self, offsets: Array) -> Array:
        """Return the offsets of the first prior box of each cell."""
        first: Array = offsets[:: self.per_cell]
        return first

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not a softmax, sizes are not logarithms, or the model
        was trained with other prior boxes.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        offsets, scores, _ = (outputs[name][0] for name in self.outputs)
        if (reason := no_shares(scores)) is not None:
            return f"scores: {reason}"
        reason = no_logarithms(offsets[:, 2:], 2) or no_offsets(self.firsts(offsets)[:, :2], 0)
        return reason or self._other_priors(self.times(outputs))

    def _other_priors(self, times: float | None) -> str | None:
        moved = None if times is None else 1 - 1 / times
        if (reason := moving(moved, _MOVES)) is None:
            return None
        return f"{reason}, so the sides of its priors must be {times:.2g} times as long"

    def times(self, outputs: Mapping[str, Array]) -> float | None:
        """Return the factor between the sides of the model's prior boxes and of this family's.

        The factor t follows from the result of `movement`, which is 1 - 1 / t. If the factor is
        unknown, return None.
        """
        moved = self.moved(outputs)
        share = None if moved is None else 1 - moved
        if share is None or not 1 / _MAX_TIMES <= share <= _MAX_TIMES:
            return None
        return 1 / share

    def has_evidence(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether there is a face. Without one, the sides of prior boxes are unknown."""
        return self.times(outputs) is not None

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level, which holds the boxes of all levels."""
        offsets, scores, points = (outputs[name][row] for name in self.outputs)
        return [(scores[:, 1:], offsets, points)]

    def priors_of(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the centres and sides of prior boxes, as `PriorBoxes.priors_of` describes."""
        assert self.size is not None, "it is sized"
        places, strides = self.cells(found)
        return (places + 0.5) * strides, _sides(self.size, self.strides, self.priors)[found]


@lru_cache(maxsize=64)
def _sides(
    size: tuple[int, int], strides: tuple[int, ...], priors: tuple[tuple[int, ...], ...]
) -> NDArray[np.float32]:
    """Return the side [n, 1] in pixels of each prior box for an input of (height, width)."""
    by_level = zip(strides, priors, strict=True)
    levels = [np.tile(sides, cells(size, (stride,))) for stride, sides in by_level]
    return np.concatenate(levels).astype(np.float32)[:, None]


class RetinaFaceSlim(RetinaFace):
    """Decodes four levels. Their cells have three, two, two and three prior boxes."""

    family = "retinaface-slim"
    strides = (8, 16, 32, 64)
    per_cell = 1  # unused, because the number of prior boxes per cell depends on the level
    priors = (
        *((10, 16, 24), (32, 48)),
        *((64, 96), (128, 192, 256)),
    )

    @classmethod
    def on_levels(cls, signature: Signature, boxes: int) -> tuple[Strength, str] | str:
        """Check that there is a box for each prior box of the four levels."""
        if boxes == -1 or signature.size is None:
            return "the number of boxes is dynamic"
        count = sum(of for _, of in cls._counts(signature.size))
        size = f"{signature.size[0]}x{signature.size[1]}"
        levels = f"3, 2, 2 and 3 for each cell at strides {', '.join(map(str, cls.strides))}"
        if boxes != count:
            return f"the model has {boxes} boxes, but an input of {size} has {count}: {levels}"
        return Strength.SHAPE, f"{boxes} boxes are {levels} of {size}"

    @classmethod
    def _counts(cls, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the stride and the number of boxes of each level."""
        for stride, sides in zip(cls.strides, cls.priors, strict=True):
            yield stride, len(sides) * cells(size, (stride,))

    def firsts(self, offsets: Array) -> Array:
        """Return the offsets of the first prior box of each cell in the finest level."""
        assert self.size is not None, "it is sized"
        _, count = next(self._counts(self.size))
        first: Array = offsets[: count : len(self.priors[0])]
        return first

    def moved(self, outputs: Mapping[str, Array]) -> float | None:
        """Return how far boxes move between cells of the finest level; see `movement`.

        Levels with too few pairs of neighbouring cells are skipped.
        """
        centres, found = self.sure(outputs)
        assert self.size is not None, "it is sized"
        start = 0
        for (stride, count), sides in zip(self._counts(self.size), self.priors, strict=True):
            mine = (found >= start) & (found < start + count)
            places = found[mine] - start, self.size, (stride,), len(sides)
            if (moved := movement(centres[mine], *places)) is not None:
                return moved
            start += count
        return None

    def cells(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the column and row [n, 2] and the stride [n, 1] of the cell of each box."""
        assert self.size is not None, "it is sized"
        places, strides = _places(self.size)
        return places[found], strides[found]


@lru_cache(maxsize=16)
def _places(size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    levels = zip(RetinaFaceSlim.strides, RetinaFaceSlim.priors, strict=True)
    grids = [grid(size, (stride,), len(sides)) for stride, sides in levels]
    places, strides = (np.concatenate(parts) for parts in zip(*grids, strict=True))
    return places, strides


class YuNet2021(PriorBoxes):
    """Decodes YuNet of 2021: offsets [priors, 14], softmax [priors, 2] and overlap [priors, 1].

    The offsets are decoded as in SSD: a centre is prior + .1 x offset x side, and a size is side x
    exp(.2 x offset). Five points are decoded like centres. The score is the square root of face x
    overlap. There is no batch axis. The first FaceDetectorYN of OpenCV (4.5.4) uses .1 instead of
    .2 for the width, so the widths of its boxes differ from the widths here.
    """

    family = "yunet-2021"
    labels = YuNet.labels
    preprocess = YuNet.preprocess

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the three outputs. Each must have a row for each prior box."""
        found = signature.named(*_NAMES_2021)
        if isinstance(found, str):
            return found
        if [tensor.shape[1:] for tensor in found] != [(14,), (2,), (1,)]:
            return OTHERS
        counts = {tensor.shape[0] for tensor in found} - {-1}
        if signature.size is not None and counts - {len(_priors_2021(signature.size)[1])}:
            height, width = signature.size
            return f"{max(counts)} rows do not fit YuNet's priors at {height}x{width}"
        return Fit(_NAMES_2021, 1, "names and columns of YuNet as of 2021", Strength.NAMES, FACE)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the number of rows differs from the number of prior boxes, or the
        values do not fit.
        """
        assert self.size is not None, "it is sized"
        offsets, scores, _ = (outputs[name] for name in self.outputs)
        if (priors := len(_priors_2021(self.size)[1])) != len(offsets):
            return f"the model has {len(offsets)} rows, but YuNet has {priors} priors"
        if (reason := no_shares(scores)) is not None:
            return f"scores: {reason}"
        return no_logarithms(offsets[:, 2:4], 2)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield all outputs. They belong to one image, because they have no batch axis."""
        for name in self.outputs:
            yield name, outputs[name]

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return a single level, which holds the boxes of all levels."""
        offsets, scores, overlap = (outputs[name] for name in self.outputs)
        face = (scores[:, 1:] * overlap.clip(0, 1)) ** 0.5
        return [(face, offsets[:, :4], offsets[:, 4:])]

    def priors_of(self, found: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the centres and sides of prior boxes, as `PriorBoxes.priors_of` describes."""
        assert self.size is not None, "it is sized"
        middles, sides = _priors_2021(self.size)
        return middles[found], sides[found]


@lru_cache(maxsize=64)
def _priors_2021(size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the centre [n, 2] and side [n, 1] of each prior box, in pixels.

    `size` is the (height, width) of the input in pixels.
    """
    # The sides of each map are half of the sides of the map before, rounded down. The first half is
    # an exception: it is rounded up.
    rows, columns = (((side + 1) // 2) // 2 for side in size)
    middles, sides = [], []
    for stride, priors in _PRIORS_2021.items():
        rows, columns = rows // 2, columns // 2
        y, x = np.divmod(np.arange(rows * columns), max(columns, 1))
        places = (np.stack([x, y], axis=1) + 0.5) * stride
        middles.append(places.repeat(len(priors), axis=0).astype(np.float32))
        sides.append(np.tile(priors, rows * columns)[:, None].astype(np.float32))
    return np.concatenate(middles), np.concatenate(sides)


# The corners have the order of the annotations in CCPD (ECCV 2018). Detectors of licence plates are
# trained on this dataset.
_CORNERS = Skeleton(
    ("bottom right", "bottom left", "top left", "top right"), ((0, 1), (1, 2), (2, 3), (3, 0))
)
_USUAL = ((16, 32), (64, 128), (256, 512))

HEADS: tuple[type[Head], ...] = (
    YuNet2021,
    RetinaFace.as_family("retinaface", priors=_USUAL),
    RetinaFace.as_family("retinaface-1mb", priors=((10, 20), (32, 64), (128, 256))),
    RetinaFaceSlim,
    RetinaFace.as_family("retinaface-plate", priors=_USUAL, labels=("plate",), points=_CORNERS),
    RetinaFace.as_family(
        "retinaface-plate-large",
        priors=((24, 48), (96, 192), (384, 768)),
        labels=("plate",),
        points=_CORNERS,
    ),
)
