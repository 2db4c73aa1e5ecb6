"""Decodes the anchor-based head of YOLOv5 and v7: [batch, 3 x cells, 5 + classes]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fovea_engines.detect.heads.base import Layout
from fovea_engines.detect.heads.dense import Dense


@dataclass(frozen=True, slots=True)
class YoloV5(Dense):
    """Decodes columns cx cy w h in pixels of the input, objectness, a probability per class."""

    family: ClassVar[str] = "yolov5"
    layout: ClassVar[Layout] = Layout(axis=2, objectness=True)
    per_cell: ClassVar[int] = 3
