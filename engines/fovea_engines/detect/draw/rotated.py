"""Draws rotated rectangles, with an arrowhead where the angle points."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.draw.colours import Colour
from fovea_engines.detect.rotated import corners

# Length of an arrowhead, in widths of a line; in a small rectangle its height.
_ARROW = 11
# Half of its width over its length.
_SPREAD = 0.38


def draw_rotated(
    canvas: NDArray[np.uint8], rotated: NDArray[np.float32], colours: Sequence[Colour], line: int
) -> None:
    """Draw rectangles [n, 5] into an image, the first last."""
    outlines = corners(rotated)
    for outline, row, fill in list(zip(outlines, rotated, colours, strict=True))[::-1]:
        length = min(float(row[3]), _ARROW * line)
        tip = (outline[1] + outline[2]) / 2
        ahead = np.array([np.cos(row[4]), np.sin(row[4])]) * length
        aside = ahead[::-1] * [-_SPREAD, _SPREAD]
        arrow = np.stack([tip, tip - ahead + aside, tip - ahead - aside])
        cv2.polylines(canvas, [_pixels(outline)], True, fill, line, cv2.LINE_AA)
        cv2.fillPoly(canvas, [_pixels(arrow)], fill, cv2.LINE_AA)


def _pixels(points: NDArray[np.floating]) -> NDArray[np.int32]:
    return points.round().astype(np.int32)
