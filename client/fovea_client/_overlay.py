"""Draws the results of an image as SVG, in the colours and with the labels of the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from fovea_client._colours import Colour, colour, ink, shades
from fovea_client._masks import Mask, Outlines
from fovea_client.answers import Detection, ImageResult
from fovea_client.shapes import Box

LEAST_SCORE = 0.5  # of a keypoint that is drawn
_OPACITY = 0.45
# A class of these names is not coloured: it is what all others are not. Without names it mostly is
# the first.
_BACKGROUND = ("background", "0")
# Of a label, in pixels of the page. Its text is stretched to the width that letters mostly have.
_HEIGHT, _LETTERS, _LETTER, _MARGIN = 18, 12, 6.8, 5


def overlay(result: ImageResult, unit: float) -> str:
    """Write SVG in pixels of the image, of which `unit` are one pixel of the page."""
    found = result.detections
    fills = [colour(each.class_id) for each in found]
    if any(each.mask for each in found):
        corners = [_bounds(each.box) for each in found]
        ids = [each.class_id for each in found]
        fills = list(map(colour, ids, shades(ids, corners)))
    areas = [
        _mask(area.mask, _css(colour(area.class_id)))
        for area in (result.semantic.classes if result.semantic else ())
        if area.class_name.casefold() not in _BACKGROUND
    ]
    # The best is drawn last, so that nothing covers it; labels are drawn over all boxes.
    shapes = [_shapes(each, _css(fill), unit) for each, fill in zip(found, fills, strict=True)]
    labels = _labels(found, fills, unit, (result.width, result.height))
    return "".join([*areas, *shapes[::-1], *labels])


def _bounds(box: Box) -> tuple[float, float, float, float]:
    return box.x1, box.y1, box.x2, box.y2


def _css(fill: Colour) -> str:
    return f"rgb{fill}"


def _shapes(found: Detection, fill: str, unit: float) -> str:
    x1, y1, x2, y2 = _bounds(found.box)
    corners = [(c.x, c.y) for c in found.corners] or [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    dots = "".join(
        f'<circle cx="{p.x:.1f}" cy="{p.y:.1f}" r="{3 * unit:.1f}" fill="{fill}"/>'
        for p in found.keypoints
        if p.score >= LEAST_SCORE
    )
    return (
        f'{_mask(found.mask, fill)}{dots}<polygon points="{_points(corners)}" fill="none" '
        f'stroke="{fill}" stroke-width="{2 * unit:.2f}"/>'
    )


def _labels(
    found: Sequence[Detection], fills: Sequence[Colour], unit: float, size: tuple[int, int]
) -> Iterator[str]:
    """Yield labels that lie inside the image and cover no other, for the best ones first."""
    taken: list[tuple[float, float, float]] = []
    tall = _HEIGHT * unit
    for each, fill in zip(found, fills, strict=True):
        text = f"{', '.join([each.class_name, *each.notes])} {each.score:.2f}"
        wide = min(float(size[0]), (len(text) * _LETTER + 2 * _MARGIN) * unit)
        for x, y in _spots(each.box, wide, tall, size[0]):
            free = all(abs(y - top) >= tall or x >= right or x + wide <= left
                       for left, top, right in taken)  # fmt: skip
            if free and 0 <= y <= size[1] - tall:
                taken.append((x, y, x + wide))
                yield (
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                    f'rx="{3 * unit:.1f}" fill="{_css(fill)}"/>'
                    f'<text x="{x + _MARGIN * unit:.1f}" y="{y + 13 * unit:.1f}" '
                    f'textLength="{wide - 2 * _MARGIN * unit:.1f}" '
                    f'lengthAdjust="spacingAndGlyphs" font-size="{_LETTERS * unit:.2f}" '
                    f'fill="{_css(ink(fill))}">{escape(text)}</text>'
                )
                break


def _spots(box: Box, wide: float, tall: float, width: int) -> Iterator[tuple[float, float]]:
    """Yield places for a label at a box's edges, best first; some may leave the image."""
    for top in (box.y1 - tall, max(box.y1, 0.0), box.y2, box.y2 - tall):
        for left in (box.x1, box.x2 - wide):
            yield max(0.0, min(left, width - wide)), top


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
    """Yield a rectangle of SVG's paths for each run down a column."""
    edges = np.diff(np.pad(pixels.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    for (x, begin), (_, end) in zip(begins, ends, strict=True):
        yield f"M{x} {begin}h1V{end}h-1z"
