"""Lists the families that are decoded. A new head needs a file and a line in this list."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.yolov5 import YoloV5
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_engines.detect.heads.yolov10 import YoloV10
from fovea_engines.detect.heads.yolox import YoloX

FAMILIES: Mapping[str, type[Head]] = MappingProxyType(
    {head.family: head for head in (YoloV5, YoloV8, YoloV10, YoloX)}
)
