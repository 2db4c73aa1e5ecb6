"""Draws what a model found into an image, and encodes it as a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.draw.classes import draw_classes
from fovea_engines.detect.draw.maps import cut_out, draw_class_map, draw_depth, draw_foreground
from fovea_engines.detect.draw.objects import draw_objects
from fovea_engines.detect.draw.tags import FONT
from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.detect.task_result import TaskResult

MediaType = Literal["image/jpeg", "image/png"]

JPEG_QUALITY = 92
# Of a caption, pixels; its letters by OpenCV's scale.
_STRIP, _GAP, _LETTERS = 40, 16, 0.7


@singledispatch
def draw(
    found: TaskResult,
    pixels: NDArray[np.uint8],
    labels: Sequence[str] | None,
    skeleton: Skeleton | None = None,
) -> NDArray[np.uint8]:
    """Return a copy of an image, uint8 RGB [h, w, 3], with what a model found on it.

    It is in pixels of this image. Class ids beyond the labels are shown as numbers. A class has one
    colour in all images; lines and letters scale with the image.
    """
    raise NotImplementedError(type(found).__name__)


draw.register(Detections, draw_objects)
draw.register(Classes, draw_classes)
draw.register(ClassMap, draw_class_map)
draw.register(SoftMask, draw_foreground)
draw.register(DepthMap, draw_depth)


def annotated(
    found: TaskResult,
    pixels: NDArray[np.uint8],
    labels: Sequence[str] | None,
    skeleton: Skeleton | None,
    media_type: MediaType,
) -> bytes:
    """Draw as `draw` does, and encode; a PNG of a `SoftMask` is the foreground alone, cut out."""
    if isinstance(found, SoftMask) and media_type == "image/png":
        return encode(cut_out(found, pixels), media_type)
    return encode(draw(found, pixels, labels, skeleton), media_type)


def captioned(image: NDArray[np.uint8], text: str) -> NDArray[np.uint8]:
    """Put a caption above an image, and widen the image on the right where the text needs it."""
    height, width = image.shape[:2]
    (text_width, text_height), _ = cv2.getTextSize(text, FONT, _LETTERS, 1)
    pane = np.zeros((_STRIP + height, max(width, text_width + _GAP) + _GAP, 3), np.uint8)
    pane[_STRIP:, :width] = image
    origin = _GAP // 2, (_STRIP + text_height) // 2
    cv2.putText(pane, text, origin, FONT, _LETTERS, (255, 255, 255), 1, cv2.LINE_AA)
    return pane


def encode(pixels: NDArray[np.uint8], media_type: MediaType) -> bytes:
    """Encode an image, uint8 RGB [h, w, 3], as a JPEG (quality 92) or PNG file.

    A PNG file may also have alpha, [h, w, 4].
    """
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    if media_type == "image/png":
        _, data = cv2.imencode(".png", bgr)
    else:
        _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return bytes(data)
