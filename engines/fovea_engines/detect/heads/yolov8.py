"""Decodes the anchor-free head of YOLOv8, v9, v11, v12 and v26: [batch, 4 + classes, cells]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fovea_engines.detect.heads.base import Layout
from fovea_engines.detect.heads.dense import Dense


@dataclass(frozen=True, slots=True)
class YoloV8(Dense):
    """Decodes rows cx cy w h in pixels of the input, then a probability per class."""

    family: ClassVar[str] = "yolov8"
    layout: ClassVar[Layout] = Layout(axis=1)
