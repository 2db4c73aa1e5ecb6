"""Detections drawn into a picture, and the picture as a file."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detections import Detections

MediaType = Literal["image/jpeg", "image/png"]
Colour = tuple[int, int, int]

FONT = cv2.FONT_HERSHEY_SIMPLEX
JPEG_QUALITY = 92


def draw(
    pixels: NDArray[np.uint8], detections: Detections, labels: Sequence[str] | None
) -> NDArray[np.uint8]:
    """A copy of a picture with boxes, class names and scores.

    Args:
        pixels: uint8 RGB [h, w, 3]; not written to.
        detections: boxes in pixels of this picture; what lies outside is cut off.
        labels: class names by class id; ids beyond them, or None, are shown as numbers.

    Returns:
        uint8 RGB [h, w, 3]. A class has one colour in all pictures; lines and letters grow with
        the picture.
    """
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    corners = np.clip(detections.boxes.round(), 0, [width - 1, height - 1] * 2).astype(int)
    line = max(1, round((height + width) * 0.0016))
    # The best last, so that nothing covers it; labels over all boxes, so that no line strikes one.
    worst_first = range(len(detections) - 1, -1, -1)
    for i in worst_first:
        x1, y1, x2, y2 = map(int, corners[i])
        fill = colour(int(detections.class_ids[i]))
        cv2.rectangle(canvas, (x1, y1), (x2, y2), fill, line, cv2.LINE_AA)
    for i in worst_first:
        class_id = int(detections.class_ids[i])
        name = labels[class_id] if labels and class_id < len(labels) else str(class_id)
        corner = int(corners[i, 0]) - line // 2, int(corners[i, 1])
        _tag(canvas, corner, f"{name} {detections.scores[i]:.2f}", colour(class_id))
    return canvas


def encode(pixels: NDArray[np.uint8], media_type: MediaType) -> bytes:
    """A picture, uint8 RGB [h, w, 3], as a JPEG (quality 92) or PNG file."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    if media_type == "image/png":
        _, data = cv2.imencode(".png", bgr)
    else:
        _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return bytes(data)


def colour(class_id: int) -> Colour:
    """RGB of a class. Golden-ratio steps around the hues keep neighbouring ids far apart."""
    hue = (0.58 + class_id * 0.618033988749895) % 1.0
    # Every third class is darker: 80 classes share the circle.
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, (1.0, 0.85, 0.7)[class_id % 3])
    return round(red * 255), round(green * 255), round(blue * 255)


def ink(background: Colour) -> Colour:
    """Black or white, whichever is read more easily on a colour (WCAG 2 contrast ratio)."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast with black equals contrast with white where (l + .05)^2 = 1.05 * .05.
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _tag(canvas: NDArray[np.uint8], corner: tuple[int, int], text: str, fill: Colour) -> None:
    """A label on a box's top-left corner: above it, or inside the box where there is no room."""
    height, width = canvas.shape[:2]
    scale = max(0.4, (height + width) * 0.00036)
    weight = max(1, round(scale * 1.8))
    (text_width, text_height), baseline = cv2.getTextSize(text, FONT, scale, weight)
    margin = max(2, text_height // 4)
    tag_width, tag_height = text_width + 2 * margin, text_height + baseline + margin

    left = max(0, min(corner[0], width - tag_width))
    top = corner[1] - tag_height if corner[1] >= tag_height else corner[1]
    top = max(0, min(top, height - tag_height))
    cv2.rectangle(canvas, (left, top), (left + tag_width, top + tag_height), fill, cv2.FILLED)
    origin = (left + margin, top + margin // 2 + text_height + baseline // 4)
    cv2.putText(canvas, text, origin, FONT, scale, ink(fill), weight, cv2.LINE_AA)
