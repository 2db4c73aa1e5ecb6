"""Geometry of rotated rectangles.

An array of rectangles has the shape [n, 5]. Each row is cx cy w h angle, in pixels and radians. The
angle turns from the x axis to the direction of the width. The y axis points down, so on the screen
the angle is clockwise.

Several rows describe the same rectangle. The regular row has w >= h and an angle in [-pi/4, 3/4
pi): the width points right or down, in the direction of reading. If w = h, the angle is in [-pi/4,
pi/4), because any side may be the width.

Two functions measure the overlap of pairs, 0 to 1. `iou` uses the areas of the rectangles, and
`probiou` uses Gaussians. They take the columns that `axes` returns, so that no angle has to be
converted for a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.letterbox import LetterboxMap

Rows = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]

_CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)


def regular(rotated: Rows) -> NDArray[np.float32]:
    """Return rectangles as regular rows, float32 [n, 5]. The module's docstring explains them."""
    turned = rotated[:, 2] < rotated[:, 3]
    rows = np.where(turned[:, None], rotated[:, [0, 1, 3, 2, 4]], rotated).astype(np.float32)
    period = np.where(rotated[:, 2] == rotated[:, 3], np.pi / 2, np.pi)
    angles = (rotated[:, 4] + np.where(turned, 3, 1) * np.pi / 4) % period - np.pi / 4
    # Compare in float32: an angle that is rounded to float32 may reach the excluded end of the
    # range.
    within = angles.astype(np.float32) < (period - np.pi / 4).astype(np.float32)
    rows[:, 4] = np.where(within, angles, -np.pi / 4)
    return rows


def half_axes(rotated: Rows) -> tuple[Rows, Rows]:
    """Return the vectors from the centre to the middle of two sides, each [n, 2].

    The first vector has the direction of the width, and the second has the direction of the height.
    """
    cos, sin = np.cos(rotated[:, 4]), np.sin(rotated[:, 4])
    u = np.column_stack([cos, sin]) * rotated[:, 2:3] / 2
    v = np.column_stack([-sin, cos]) * rotated[:, 3:4] / 2
    return u, v


def corners(rotated: Rows) -> Rows:
    """Return the corners [n, 4, 2], x y. At angle 0 they go clockwise from the top left corner."""
    u, v = half_axes(rotated)
    centre = rotated[:, :2]
    return np.stack([centre - u - v, centre + u - v, centre + u + v, centre - u + v], axis=1)


def bounds(rotated: Rows) -> Rows:
    """Return the upright boxes [n, 4], x1 y1 x2 y2, around rectangles.

    The box of a rectangle without an area is NaN.
    """
    u, v = half_axes(rotated)
    reach = np.abs(u) + np.abs(v)
    reach[~(rotated[:, 2:4] > 0).all(axis=1)] = np.nan
    centre = rotated[:, :2]
    return np.concatenate([centre - reach, centre + reach], axis=1)


def to_source(rotated: Rows, back: LetterboxMap) -> NDArray[np.float32]:
    """Map rectangles from the model's input to the image that `back` was computed for.

    The rectangles are not clipped to the image. The result is exact if x and y have the same scale.
    Otherwise a rectangle becomes a parallelogram. The function returns a rectangle with the same
    centre and area as the parallelogram, and with the direction and length of its first side.
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


def axes(rotated: Rows) -> Floats:
    """Return the centre and both half axes of each rectangle, float64 [6, n].

    The six rows are the x and y of the centre, and of the two vectors from `half_axes`.
    """
    rows = rotated.astype(np.float64)
    return np.concatenate([rows[:, :2], *half_axes(rows)], axis=1).T


def probiou(one: Floats, other: Floats) -> Floats:
    """Return the ProbIoU [n] of n pairs of rectangles. `axes` returns both arguments, [6, n].

    ProbIoU (arXiv 2106.06072) is 1 minus the Hellinger distance of two Gaussians, which is computed
    from their Bhattacharyya distance. The Gaussian of a rectangle has the centre of the rectangle,
    and the covariance of points that are spread evenly over its area.
    """
    x, y = one[:2] - other[:2]
    # a, b and c are three times the sum of both covariances. The next lines correct the factor.
    a, b, c = _spread(one) + _spread(other)
    determinant = a * b - c**2
    apart = 3 * (a * y**2 + b * x**2 - 2 * c * x * y) / (4 * determinant)
    unlike = np.log(determinant / (4 * _quarter(one) * _quarter(other))) / 2
    # Rounding can make the distance of equal rectangles negative.
    distance = np.maximum(apart + unlike, 0)
    similar: Floats = 1 - np.sqrt(-np.expm1(-distance))
    return similar


def iou(one: Floats, other: Floats) -> Floats:
    """Return the intersection over union [n] of n pairs of rectangles.

    `axes` returns both arguments, [6, n]. The corners of the first rectangle are expressed in half
    axes of the second rectangle, so that the second rectangle becomes a square from -1 to 1. The
    edges of the first rectangle are split where they cross the lines of the square. Points outside
    the square are then moved to the nearest line. There they enclose no area. The shoelace formula
    gives the remaining area, which is the intersection.
    """
    corners = (one[:2] - other[:2]).T[:, None] + _CORNERS @ one[2:].T.reshape(-1, 2, 2)
    frame = other[2:].T.reshape(-1, 2, 2)
    start = corners @ (frame / np.square(frame).sum(axis=2, keepdims=True)).transpose(0, 2, 1)
    step = np.roll(start, -1, axis=1) - start
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = np.concatenate([(-1 - start) / step, (1 - start) / step], axis=2)
    crossings = np.sort(np.nan_to_num(np.clip(crossings, 0, 1)), axis=2)
    parts = np.concatenate([np.zeros_like(crossings[..., :1]), crossings], axis=2)
    outline = start[:, :, None] + parts[..., None] * step[:, :, None]
    x, y = np.moveaxis(np.clip(outline, -1, 1).reshape(-1, 20, 2), 2, 0)
    inside = np.abs((x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)) / 2
    areas = _quarter(one), _quarter(other)
    shared = np.minimum(inside / 4 * areas[1], np.minimum(*areas))
    overlap: Floats = shared / (areas[0] + areas[1] - shared)
    return overlap


def _spread(table: Floats) -> Floats:
    """Return x * x, y * y and x * y, each added up over both half axes, float64 [3, n]."""
    _, _, ux, uy, vx, vy = table
    return np.stack([ux**2 + vx**2, uy**2 + vy**2, ux * uy + vx * vy])


def _quarter(table: Floats) -> Floats:
    """Return a quarter of the area of each rectangle, float64 [n]."""
    _, _, ux, uy, vx, vy = table
    quarter: Floats = ux * vy - uy * vx
    return quarter
