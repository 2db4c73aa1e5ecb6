"""Rotated rectangles: rows cx cy w h angle.

The angle is that of the width, from the x axis towards the y axis, which points down: on the screen
it turns clockwise. A rectangle has many such rows. The regular one has w >= h and an angle from
-pi/4 to 3/4 pi, without that: the width points to the right or down, as text is read. A square's is
from -pi/4 to pi/4, as any side may be its width. All functions take rows [n, 5], in pixels and
radians.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.letterbox import LetterboxMap

Rows = NDArray[np.floating[Any]]


def regular(rotated: Rows) -> NDArray[np.float32]:
    """Return the same rectangles by their regular rows, float32."""
    turned = rotated[:, 2] < rotated[:, 3]
    rows = np.where(turned[:, None], rotated[:, [0, 1, 3, 2, 4]], rotated).astype(np.float32)
    period = np.where(rotated[:, 2] == rotated[:, 3], np.pi / 2, np.pi)
    angles = (rotated[:, 4] + np.where(turned, 3, 1) * np.pi / 4) % period - np.pi / 4
    # Rounding takes an angle just under the end, and one just under the start, to the end.
    within = angles.astype(np.float32) < (period - np.pi / 4).astype(np.float32)
    rows[:, 4] = np.where(within, angles, -np.pi / 4)
    return rows


def half_axes(rotated: Rows) -> tuple[Rows, Rows]:
    """Return half of the width's side and of the height's, as vectors [n, 2]."""
    cos, sin = np.cos(rotated[:, 4]), np.sin(rotated[:, 4])
    u = np.column_stack([cos, sin]) * rotated[:, 2:3] / 2
    v = np.column_stack([-sin, cos]) * rotated[:, 3:4] / 2
    return u, v


def corners(rotated: Rows) -> Rows:
    """Return the corners [n, 4, 2], x y: at an angle of 0 clockwise from the top left one."""
    u, v = half_axes(rotated)
    centre = rotated[:, :2]
    return np.stack([centre - u - v, centre + u - v, centre + u + v, centre - u + v], axis=1)


def bounds(rotated: Rows) -> Rows:
    """Return the upright boxes [n, 4], x1 y1 x2 y2, around them; NaN around one without area."""
    u, v = half_axes(rotated)
    reach = np.abs(u) + np.abs(v)
    reach[~(rotated[:, 2:4] > 0).all(axis=1)] = np.nan
    centre = rotated[:, :2]
    return np.concatenate([centre - reach, centre + reach], axis=1)


def to_source(rotated: Rows, back: LetterboxMap) -> NDArray[np.float32]:
    """Map them from the input to the image that `back` was computed for, without clipping.

    It is exact where both sides have the same scale. A stretch makes them parallelograms, for which
    stand the rectangles of the same centre, area and direction and length of the first side.
    """
    u, _ = half_axes(rotated)
    scale = np.array([back.scale_x, back.scale_y])
    side = 2 * u / scale
    width = np.hypot(*side.T)
    area = rotated[:, 2] * rotated[:, 3] / scale.prod()
    with np.errstate(divide="ignore", invalid="ignore"):
        height = np.nan_to_num(area / width)
    centre = back.points_to_source(rotated[:, :2])
    angle = np.arctan2(side[:, 1], side[:, 0])
    return regular(np.column_stack([centre, width, height, angle]))
