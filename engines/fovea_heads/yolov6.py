"""Decodes YOLOv6: [batch, cells, 5 + classes], of which objectness is always 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fovea_engines.detect.heads.base import Layout
from fovea_engines.detect.heads.dense import Dense, best_class
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class YoloV6(Dense):
    """Decodes columns cx cy w h in pixels of the input, a constant 1, a probability per class."""

    family: ClassVar[str] = "yolov6"
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    layout: ClassVar[Layout] = Layout(axis=2, objectness=True)
    rare: ClassVar[bool] = True

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude objectness that tells one box from another."""
        lowest = outputs[self.outputs[0]][0, :, 4].min(initial=1)
        if lowest < 1:
            return f"column 4, which YOLOv6 leaves at 1, is {lowest:.3g} for a box"
        return super(YoloV6, self).contradiction(outputs)

    def bound(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the best class of each box, as objectness rejects none."""
        return best_class(table[5:])
