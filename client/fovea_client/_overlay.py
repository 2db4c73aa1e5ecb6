"""Draws the results of an image as SVG, with the colours and labels of the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from fovea_client._colours import Colour, colour, ink
from fovea_client._labels import BACKGROUND, Label, colours_of, labels_of
from fovea_client._masks import Mask, Outlines
from fovea_client._skeleton import SEEN
from fovea_client.answers import Detection, ImageResult

_OPACITY = 0.45
# Height, font size, width of a letter and margin of a label, in CSS pixels. The width of the text
# is the number of letters times the width of a letter, and SVG stretches the text to this width.
_HEIGHT, _LETTERS, _LETTER, _MARGIN = 18, 12, 6.8, 5


def overlay(result: ImageResult, unit: float) -> str:
    """Return SVG in the coordinates of the image.

    Args:
        result: results to draw.
        unit: number of image pixels per CSS pixel.
    """
    found, size = result.detections, (result.width, result.height)
    areas = [
        _mask(area.mask, _css(colour(area.class_id)))
        for area in (result.semantic.classes if result.semantic else ())
        if area.class_name.casefold() not in BACKGROUND
    ]
    # Draw the best object last, so that nothing covers it. Draw the labels over all boxes.
    shapes = [
        _shapes(each, _css(fill), unit) for each, fill in zip(found, colours_of(found), strict=True)
    ]

    def width_of(text: str) -> float:
        return min(float(size[0]), (len(text) * _LETTER + 2 * _MARGIN) * unit)

    labels = [_label(each, unit) for each in labels_of(found, width_of, _HEIGHT * unit, size)]
    return "".join([*areas, *shapes[::-1], *labels])


def _css(fill: Colour) -> str:
    return f"rgb{fill}"


def _shapes(found: Detection, fill: str, unit: float) -> str:
    x1, y1, x2, y2 = found.box.x1, found.box.y1, found.box.x2, found.box.y2
    corners = [(c.x, c.y) for c in found.corners] or [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    dots = "".join(
        f'<circle cx="{p.x:.1f}" cy="{p.y:.1f}" r="{3 * unit:.1f}" fill="{fill}"/>'
        for p in found.keypoints
        if p.score >= SEEN
    )
    return (
        f'{_mask(found.mask, fill)}{dots}<polygon points="{_points(corners)}" fill="none" '
        f'stroke="{fill}" stroke-width="{2 * unit:.2f}"/>'
    )


def _label(label: Label, unit: float) -> str:
    text, fill, x, y, wide, tall = label
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
        f'rx="{3 * unit:.1f}" fill="{_css(fill)}"/>'
        f'<text x="{x + _MARGIN * unit:.1f}" y="{y + 13 * unit:.1f}" '
        f'textLength="{wide - 2 * _MARGIN * unit:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" font-size="{_LETTERS * unit:.2f}" '
        f'fill="{_css(ink(fill))}">{escape(text)}</text>'
    )


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _mask(mask: Mask | None, fill: str) -> str:
    if mask is None:
        return ""
    paint = f'fill="{fill}" fill-opacity="{_OPACITY}"'
    if isinstance(mask, Outlines):
        outlines = (zip(outline[::2], outline[1::2], strict=True) for outline in mask.polygons)
        return "".join(f'<polygon points="{_points(each)}" {paint}/>' for each in outlines)
    return f'<path d="{"".join(_columns(mask.pixels))}" {paint}/>'


def _columns(pixels: NDArray[np.bool_]) -> Iterator[str]:
    """Yield one rectangle as an SVG path for each run of True pixels in a column."""
    edges = np.diff(np.pad(pixels.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    for (x, begin), (_, end) in zip(begins, ends, strict=True):
        yield f"M{x} {begin}h1V{end}h-1z"
