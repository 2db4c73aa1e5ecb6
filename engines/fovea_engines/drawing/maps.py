"""Draws maps: classes in their colours, foreground, and depths."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.drawing.tags import Tag, draw_tag, letter
from fovea_engines.results.class_names import shown_name
from fovea_engines.results.colours import Colour, colour
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.vocabulary import Vocabulary

Pixels = NDArray[np.uint8]

# Share of a class's colour over the image.
_OPACITY = 0.55
# A class of these names is not coloured: it is what all others are not. Without names it mostly is
# the first.
_BACKGROUND = ("background", "class 0")
# More classes than these would hide the image.
_LINES = 10
# A smaller share would be written as 0.0%.
_MIN_SHARE = 0.0005
# Brightness of the background of a foreground.
_DIMMED = 0.25
# A few depths far from all others would leave one colour to these.
_RANGE = (1, 99)
# Perceptually uniform: equal steps of depth look equal.
_PALETTE = cv2.COLORMAP_INFERNO


def draw_class_map(found: ClassMap, pixels: Pixels, words: Vocabulary) -> Pixels:
    """Draw classes as `draw` does, with their names and shares in the corner."""
    ids = found.pixels()
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    present = [
        class_id
        for class_id in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        if shown_name(words.labels, class_id).casefold() not in _BACKGROUND
    ]
    palette = np.zeros((NOTHING + 1, 3), np.uint8)
    for class_id in present:
        palette[class_id] = colour(class_id)
    coloured = np.isin(ids, present)
    canvas = np.ascontiguousarray(pixels).copy()
    tinted = cv2.addWeighted(canvas, 1 - _OPACITY, palette[ids], _OPACITY, 0)
    np.copyto(canvas, np.asarray(tinted, np.uint8), where=coloured[..., None])
    rows = [
        (f"{shown_name(words.labels, one)} {share:.1%}", colour(one))
        for one in present[:_LINES]
        if (share := counts[one] / ids.size) >= _MIN_SHARE
    ]
    _draw_list(canvas, rows)
    return canvas


def draw_foreground(found: SoftMask, pixels: Pixels, words: Vocabulary) -> Pixels:
    """Draw a foreground as `draw` does: the rest of the image is darkened."""
    light = _DIMMED + (1 - _DIMMED) * found.pixels()
    return (pixels * light[..., None]).round().astype(np.uint8)


def cut_out(found: SoftMask, pixels: Pixels) -> Pixels:
    """Return the image as uint8 RGBA [h, w, 4], transparent where no foreground is."""
    alpha = (found.pixels() * 255).round().astype(np.uint8)
    return np.dstack([pixels, alpha])


def draw_depth(found: DepthMap, pixels: Pixels, words: Vocabulary) -> Pixels:
    """Draw depths as `draw` does: near pixels are bright, and a scale is in the corner.

    Of a model without a unit, the greatest values are bright.
    """
    values = found.pixels()
    low, high = np.percentile(values, _RANGE)
    levels = ((values - low) * (255 / max(high - low, 1e-12))).clip(0, 255).astype(np.uint8)
    steps = np.arange(256, dtype=np.uint8)
    if found.metres:
        levels, steps = 255 - levels, steps[::-1]
    canvas = _coloured(levels)
    unit = " m" if found.metres else ""
    _draw_scale(canvas, _coloured(steps[None]), f"{low:.3g}{unit}", f"{high:.3g}{unit}")
    return canvas


def _coloured(levels: Pixels) -> Pixels:
    bgr = cv2.applyColorMap(np.ascontiguousarray(levels), _PALETTE)
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def _draw_list(canvas: Pixels, rows: Sequence[tuple[str, Colour]]) -> None:
    """Write lines on their colours from the top left down, as many as there is room for."""
    height, width = canvas.shape[:2]
    scale = _letters(height, width)
    margin = top = round(12 * scale)
    for text, fill in rows:
        lettering = letter(text, scale)
        if top + lettering.height > height or margin + lettering.width > width:
            return
        draw_tag(canvas, Tag(lettering, margin, top), fill)
        top += lettering.height


def _draw_scale(canvas: Pixels, colours: Pixels, low: str, high: str) -> None:
    """Draw a bar of colours [1, n, 3] at the bottom left between the values of its ends."""
    height, width = canvas.shape[:2]
    scale = _letters(height, width)
    margin, length = round(12 * scale), width // 4
    ends = letter(low, scale), letter(high, scale)
    top, across = height - margin - ends[0].height, sum(each.width for each in ends) + length
    if top < 0 or margin + across > width or not length:
        return
    left = margin + ends[0].width
    bar = cv2.resize(colours, (length, ends[0].height), interpolation=cv2.INTER_LINEAR)
    canvas[top : top + ends[0].height, left : left + length] = bar
    for lettering, at, fill in zip(ends, (margin, left + length), (0, -1), strict=True):
        red, green, blue = colours[0, fill].tolist()
        draw_tag(canvas, Tag(lettering, at, top), (red, green, blue))


def _letters(height: int, width: int) -> float:
    """Return the scale of OpenCV's font that suits the size of an image."""
    return max(0.4, (height + width) * 0.00036)
