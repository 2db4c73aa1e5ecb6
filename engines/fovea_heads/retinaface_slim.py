"""Decodes slim and RFB of Face-Detector-1MB-with-landmark: RetinaFace of four levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.grid import grid, movement
from fovea_engines.detect.heads.signature import Signature, Strength, cells
from fovea_engines.session import Array
from fovea_heads.retinaface import RetinaFace


class RetinaFaceSlim(RetinaFace):
    """Decodes priors that are three, two, two and three for each cell of the levels."""

    family = "retinaface-slim"
    strides = (8, 16, 32, 64)
    per_cell = 1  # of the levels together, of which none is a multiple
    priors = (
        *((10, 16, 24), (32, 48)),
        *((64, 96), (128, 192, 256)),
    )

    @classmethod
    def on_levels(cls, signature: Signature, boxes: int) -> tuple[Strength, str] | str:
        """Check that there is a box for each prior."""
        if boxes == -1 or signature.size is None:
            return "the number of boxes is dynamic"
        count = sum(of for _, of in cls._counts(signature.size))
        size = f"{signature.size[0]}x{signature.size[1]}"
        levels = f"3, 2, 2 and 3 for each cell at strides {', '.join(map(str, cls.strides))}"
        if boxes != count:
            return f"{boxes} boxes, where {size} has {count}: {levels}"
        return Strength.SHAPE, f"{boxes} boxes are {levels} of {size}"

    @classmethod
    def _counts(cls, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the stride and the number of boxes of each level."""
        for stride, sides in zip(cls.strides, cls.priors, strict=True):
            yield stride, len(sides) * cells(size, (stride,))

    def firsts(self, offsets: Array) -> Array:
        """Return the offsets of the first prior of each cell of the finest level."""
        assert self.size is not None, "it is sized"
        _, count = next(self._counts(self.size))
        first: Array = offsets[: count : len(self.priors[0])]
        return first

    def moved(self, outputs: Mapping[str, Array]) -> float | None:
        """Return how boxes move with their cells, on the finest level that has enough of them."""
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
        """Return column and row [n, 2] and stride [n, 1] of the cells of boxes."""
        assert self.size is not None, "it is sized"
        places, strides = _places(self.size)
        return places[found], strides[found]


@lru_cache(maxsize=16)
def _places(size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    levels = zip(RetinaFaceSlim.strides, RetinaFaceSlim.priors, strict=True)
    grids = [grid(size, (stride,), len(sides)) for stride, sides in levels]
    places, strides = (np.concatenate(parts) for parts in zip(*grids, strict=True))
    return places, strides
