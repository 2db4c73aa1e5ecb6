"""Decodes YOLOX: [batch, cells, 5 + classes], as a raw grid or decoded in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import YOLOX, Layout, corners
from fovea_engines.detect.heads.dense import Dense, no_classes
from fovea_engines.detect.heads.evidence import (
    no_logarithms,
    no_objectness,
    no_probabilities,
    unsure_beside_objectness,
)
from fovea_engines.detect.heads.grid import grid, no_grid, no_offsets
from fovea_engines.detect.heads.signature import STRIDES, Fit, Signature, Strength, cells
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class YoloX(Dense):
    """Decodes columns offset x y in cells, log w h in strides, objectness and classes.

    Follows the YOLOX paper (arXiv 2107.08430): (offset + cell) x stride, exp(log) x stride.
    """

    family: ClassVar[str] = "yolox"
    preprocess: ClassVar[Mapping[str, Any]] = YOLOX
    layout: ClassVar[Layout] = Layout(axis=2, objectness=True)
    sized: ClassVar[bool] = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, cells, 5 + classes]."""
        fit = super(YoloX, cls).fit(signature)
        if isinstance(fit, str):
            return fit
        if fit.strength is Strength.POSSIBLE and signature.metadata.keys() & {"names", "stride"}:
            return "the number of boxes is not known, and YOLOX exports carry no metadata"
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude decoded boxes, whose sizes are no logarithms, and what is no probability."""
        rows = outputs[self.outputs[0]][0]
        assert self.size is not None, "it is sized"
        return (
            no_grid(len(rows), self.size, self.per_cell)
            or no_logarithms(rows[:, 2:4], 2)
            or no_offsets(rows[:, :4], 0)
            or no_probabilities(rows[:, 4:], 4)
            or no_classes(rows[:, 5:], 5)
            or no_objectness(rows[:, 4:], 4)
        )

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Doubt classes that are as unsure as those without an objectness."""
        return unsure_beside_objectness(outputs[self.outputs[0]][0][:, 4:])

    def boxes(
        self, few: NDArray[np.float32], found: NDArray[np.intp], total: int
    ) -> NDArray[np.float32]:
        """Return corners, as `Dense.boxes`."""
        assert self.size is not None, "it is sized"
        strides = next(s for s in STRIDES if cells(self.size, s) == total)
        places, steps = (table[found] for table in grid(self.size, strides))
        centre, size = (few[:, :2] + places) * steps, np.exp(few[:, 2:]) * steps
        return corners(np.concatenate([centre, size], axis=1))


@dataclass(frozen=True, slots=True)
class DecodedYoloX(Dense):
    """Decodes what `--decode_in_inference` exports: columns cx cy w h in pixels of the input."""

    family: ClassVar[str] = "yolox-decoded"
    preprocess: ClassVar[Mapping[str, Any]] = YOLOX
    layout: ClassVar[Layout] = Layout(axis=2, objectness=True)
    rare: ClassVar[bool] = True

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude offsets and logarithms, which go below 0, and YOLOv6's constant objectness."""
        rows = outputs[self.outputs[0]][0]
        if (rows[:, 4] == 1).all():
            return "column 4 is 1 for every box, as in YOLOv6"
        if (lowest := rows[:, 2:4].min(initial=0)) < 0:
            return f"columns 2 and 3 are no sizes in pixels: the least is {lowest:.3g}"
        form = super(DecodedYoloX, self).contradiction(outputs)
        return form or no_objectness(rows[:, 4:], 4)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Doubt classes that are as unsure as those without an objectness."""
        return unsure_beside_objectness(outputs[self.outputs[0]][0][:, 4:])
