"""Draws detections into an image, and encodes it as a file."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections

MediaType = Literal["image/jpeg", "image/png"]
Colour = tuple[int, int, int]

Box = tuple[int, int, int, int]
"""Corners x1 y1 x2 y2 in pixels; x2 and y2 are the first beyond."""

JPEG_QUALITY = 92
FONT = cv2.FONT_HERSHEY_SIMPLEX
# Of a caption, pixels; its letters by OpenCV's scale.
_STRIP, _GAP, _LETTERS = 40, 16, 0.7
# Smaller letters are illegible.
_SMALLEST_SCALE = 0.3
# A tag does not hide a head that is this many times as large: a bus may carry a person's tag.
_LARGE_HEAD = 32


def draw(
    pixels: NDArray[np.uint8], detections: Detections, labels: Sequence[str] | None
) -> NDArray[np.uint8]:
    """Return a copy of an image, uint8 RGB [h, w, 3], with boxes, class names and scores.

    Boxes are in pixels of this image, and clipped to it. Class ids beyond the labels are shown as
    numbers. A class has one colour in all images; lines and letters scale with the image.
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


class Lettering(NamedTuple):
    """One line of text in one size of OpenCV's font, and the size of its tag in pixels.

    `origin` is the left end of the base line, relative to the tag's top left corner.
    """

    text: str
    scale: float
    weight: int
    width: int
    height: int
    origin: tuple[int, int]


# Measuring a text takes about as long as drawing it, and few texts occur again and again.
@lru_cache(maxsize=4096)
def letter(text: str, scale: float) -> Lettering:
    """Measure a text."""
    weight = max(1, round(scale * 1.8))
    (width, height), baseline = cv2.getTextSize(text, FONT, scale, weight)
    margin = max(2, height // 4)
    return Lettering(
        text,
        scale,
        weight,
        width + 2 * margin,
        height + baseline + margin,
        (margin, margin // 2 + height + baseline // 4),
    )


@dataclass(frozen=True, slots=True)
class Tag:
    """A lettering, and the top left corner of its tag in the image."""

    lettering: Lettering
    left: int
    top: int


def place(
    boxes: Sequence[Box], names: Sequence[str], scores: Sequence[float], size: tuple[int, int]
) -> list[Tag | None]:
    """Give every box, inside an image of (width, height), the best tag that still fits, or None.

    The first box, the best, chooses first. A tag lies inside the image, covers no other tag, and
    leaves the head of every box, its upper third, free. Where name and score do not fit they
    shrink, then the score is dropped, then the tag.
    """
    width, height = size
    scale = max(0.4, (width + height) * 0.00036)
    small = max(_SMALLEST_SCALE, scale * 0.75)
    full = [f"{name} {score:.2f}" for name, score in zip(names, scores, strict=True)]
    taken = np.zeros((height, width), np.uint8)
    tags = [letter(text, scale) for text in full]
    large = _LARGE_HEAD * max((tag.width * tag.height for tag in tags), default=0)
    for x1, y1, x2, y2 in boxes:
        chin = y1 + math.ceil((y2 - y1) / 3)
        if (x2 - x1) * (chin - y1) < large:
            taken[y1:chin, x1:x2] = 1
    return [
        _claim(taken, box, ((text, scale), (text, small), (name, small)))
        for box, text, name in zip(boxes, full, names, strict=True)
    ]


def _claim(taken: NDArray[np.uint8], box: Box, choices: Sequence[tuple[str, float]]) -> Tag | None:
    """Reserve the best free place for a box's tag, with the first text and scale that fits."""
    for text, scale in choices:
        lettering = letter(text, scale)
        for left, top in _spots(box, lettering, taken.shape[1]):
            spot = taken[max(top, 0) : top + lettering.height, left : left + lettering.width]
            if spot.shape == (lettering.height, lettering.width) and not cv2.hasNonZero(spot):
                spot[:] = 1
                return Tag(lettering, left, top)
    return None


def _spots(box: Box, tag: Lettering, image_width: int) -> Iterator[tuple[int, int]]:
    """Yield top left corners for a tag at a box's edges, best first; some may leave the image."""
    x1, y1, x2, y2 = box
    for top in (y1 - tag.height, y1, y2, y2 - tag.height):
        for left in (x1, x2 - tag.width):
            yield max(0, min(left, image_width - tag.width)), top
