"""Draws detections into an image, and encodes it as a file."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.tags import FONT, Tag, place

MediaType = Literal["image/jpeg", "image/png"]
Colour = tuple[int, int, int]

JPEG_QUALITY = 92
# Of a caption, pixels; its letters by OpenCV's scale.
_STRIP, _GAP, _LETTERS = 40, 16, 0.7


def draw(
    pixels: NDArray[np.uint8], detections: Detections, labels: Sequence[str] | None
) -> NDArray[np.uint8]:
    """Return a copy of an image with boxes, class names and scores.

    Args:
        pixels: uint8 RGB [h, w, 3]; not changed.
        detections: boxes in pixels of this image; clipped to it.
        labels: class names by class id; ids beyond them, or None, are shown as numbers.

    Returns:
        uint8 RGB [h, w, 3]. A class has one colour in all images; lines and letters scale with the
        image.
    """
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    corners = np.clip(detections.boxes.round(), 0, [width - 1, height - 1] * 2).astype(np.int64)
    line = max(1, round((height + width) * 0.0016))
    class_ids = detections.class_ids.tolist()
    # The best box is drawn last, so that nothing covers it; tags are drawn over all boxes.
    for (x1, y1, x2, y2), class_id in zip(corners[::-1].tolist(), class_ids[::-1], strict=True):
        cv2.rectangle(canvas, (x1, y1), (x2, y2), colour(class_id), line, cv2.LINE_AA)
    names = [class_name(labels, i) for i in class_ids]
    reach = np.array([-(line // 2)] * 2 + [line // 2 + 1] * 2)
    edges = np.clip(corners + reach, 0, [width, height] * 2)
    tags = place(
        [(x1, y1, x2, y2) for x1, y1, x2, y2 in edges.tolist()],
        names,
        detections.scores.tolist(),
        (width, height),
    )
    for tag, class_id in zip(tags, class_ids, strict=True):
        if tag is not None:
            _draw_tag(canvas, tag, colour(class_id))
    return canvas


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
    """Encode an image, uint8 RGB [h, w, 3], as a JPEG (quality 92) or PNG file."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    if media_type == "image/png":
        _, data = cv2.imencode(".png", bgr)
    else:
        _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return bytes(data)


def colour(class_id: int) -> Colour:
    """Return the RGB colour of a class. Golden-ratio steps of hue keep neighbouring ids apart."""
    hue = (0.58 + class_id * 0.618033988749895) % 1.0
    # Every third class is darker: 80 classes share the circle.
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, (1.0, 0.85, 0.7)[class_id % 3])
    return round(red * 255), round(green * 255), round(blue * 255)


def ink(background: Colour) -> Colour:
    """Return black or white, whichever contrasts more with a colour (WCAG 2 contrast ratio)."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast with black equals contrast with white where (l + .05)^2 = 1.05 * .05.
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _draw_tag(canvas: NDArray[np.uint8], tag: Tag, fill: Colour) -> None:
    text, scale, weight, width, height, (x, y) = tag.lettering
    canvas[tag.top : tag.top + height, tag.left : tag.left + width] = fill
    origin = tag.left + x, tag.top + y
    cv2.putText(canvas, text, origin, FONT, scale, ink(fill), weight, cv2.LINE_AA)
