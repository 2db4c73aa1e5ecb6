"""Decodes the anchor-based head of YOLOv5 and v7: [batch, 3 x cells, 5 + classes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fovea_engines.detect.heads.base import Layout
from fovea_engines.detect.heads.dense import Dense
from fovea_engines.detect.heads.evidence import no_objectness, unsure_beside_objectness
from fovea_engines.session import Array


@dataclass(frozen=True, slots=True)
class YoloV5(Dense):
    """Decodes columns cx cy w h in pixels of the input, objectness, a probability per class."""

    family: ClassVar[str] = "yolov5"
    layout: ClassVar[Layout] = Layout(axis=2, objectness=True)
    per_cell: ClassVar[int] = 3

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what has no objectness before the classes."""
        # A class with slots is made anew, and `super` alone would mean the first.
        return super(YoloV5, self).contradiction(outputs) or no_objectness(
            self._classes(outputs), 4
        )

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Doubt classes that are as unsure as those without an objectness."""
        return unsure_beside_objectness(self._classes(outputs))

    def _classes(self, outputs: Mapping[str, Array]) -> Array:
        classes: Array = self._table(outputs[self.outputs[0]][0])[4 : self._end].T
        return classes
