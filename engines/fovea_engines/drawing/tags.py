"""Places the names of objects on an image.

A tag is the name of an object on a coloured background. A tag covers no other tag, and not the top
of an object.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.colours import Colour, ink

Box = tuple[int, int, int, int]
"""Corners x1 y1 x2 y2 in pixels. x2 and y2 are the first column and row after the box."""

FONT = cv2.FONT_HERSHEY_SIMPLEX
# Smallest legible scale of OpenCV's font.
_SMALLEST_SCALE = 0.3
# A tag may cover the top of an object if the top is at least this many times as large as the tag.
# For example, the tag of a person may lie on the top of a bus.
_LARGE_HEAD = 32


class Lettering(NamedTuple):
    """The layout of a tag: its text, the scale of OpenCV's font, and its size in pixels.

    `origin` is the left end of the text's base line, relative to the tag's top left corner.
    """

    text: str
    scale: float
    weight: int
    width: int
    height: int
    origin: tuple[int, int]


# Cache the layouts: measuring a text takes about as long as drawing it, and the same texts occur in
# many images.
@lru_cache(maxsize=4096)
def letter(text: str, scale: float) -> Lettering:
    """Return the layout of a tag with this text."""
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
    """The layout of a tag, and the position of its top left corner in pixels of the image."""

    lettering: Lettering
    left: int
    top: int


def place(
    boxes: Sequence[Box], names: Sequence[str], scores: Sequence[float], size: tuple[int, int]
) -> list[Tag | None]:
    """Choose a tag for each box. If no tag fits, the entry of the box is None.

    The tag of the best box is placed first. A tag lies inside the image. It does not cover another
    tag, or the top (the upper third) of a box. If the name and the score do not fit, a smaller font
    is used. If they still do not fit, the tag has only the name. If the name does not fit either,
    there is no tag.

    Args:
        boxes: corners of each box inside the image, best box first.
        names: name of each object.
        scores: score of each object, 0 to 1.
        size: (width, height) of the image in pixels.
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
    """Reserve the best free position for a box's tag. The first choice that fits is used.

    `choices` are pairs of a text and a font scale. If no choice fits, return None.
    """
    for text, scale in choices:
        lettering = letter(text, scale)
        for left, top in _spots(box, lettering, taken.shape[1]):
            spot = taken[max(top, 0) : top + lettering.height, left : left + lettering.width]
            if spot.shape == (lettering.height, lettering.width) and not cv2.hasNonZero(spot):
                spot[:] = 1
                return Tag(lettering, left, top)
    return None


def _spots(box: Box, tag: Lettering, image_width: int) -> Iterator[tuple[int, int]]:
    """Yield possible top left corners for a tag at a box's edges, best first.

    At some of these positions the tag would extend beyond the image.
    """
    x1, y1, x2, y2 = box
    for top in (y1 - tag.height, y1, y2, y2 - tag.height):
        for left in (x1, x2 - tag.width):
            yield max(0, min(left, image_width - tag.width)), top


def draw_tag(canvas: NDArray[np.uint8], tag: Tag, fill: Colour) -> None:
    """Draw a tag into an image, uint8 RGB [h, w, 3]."""
    text, scale, weight, width, height, (x, y) = tag.lettering
    canvas[tag.top : tag.top + height, tag.left : tag.left + width] = fill
    origin = tag.left + x, tag.top + y
    cv2.putText(canvas, text, origin, FONT, scale, ink(fill), weight, cv2.LINE_AA)
