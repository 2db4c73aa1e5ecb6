"""Overlaps of pairs of rotated rectangles, 0 to 1: of the areas, and of Gaussians in their place.

A rectangle is a column of `axes`, so that no pair needs an angle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.rotated import Rows, half_axes

Floats = NDArray[np.float64]

_CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)


def axes(rotated: Rows) -> Floats:
    """Return centre and half axes, x y of each, float64 [6, n], of rows [n, 5]."""
    rows = rotated.astype(np.float64)
    return np.concatenate([rows[:, :2], *half_axes(rows)], axis=1).T


def probiou(one: Floats, other: Floats) -> Floats:
    """Return ProbIoU [n] (arXiv 2106.06072) of n pairs, [6, n] each.

    A rectangle's Gaussian has its centre and the covariance of its evenly filled area. ProbIoU is 1
    less the Hellinger distance, by the Bhattacharyya distance of the two.
    """
    x, y = one[:2] - other[:2]
    # The covariance of a rectangle is a third of this.
    a, b, c = _spread(one) + _spread(other)
    determinant = a * b - c**2
    apart = 3 * (a * y**2 + b * x**2 - 2 * c * x * y) / (4 * determinant)
    unlike = np.log(determinant / (4 * _quarter(one) * _quarter(other))) / 2
    # Rounding takes the distance of two equal ones under 0.
    distance = np.maximum(apart + unlike, 0)
    similar: Floats = 1 - np.sqrt(-np.expm1(-distance))
    return similar


def iou(one: Floats, other: Floats) -> Floats:
    """Return the intersection over union [n] of n pairs, [6, n] each.

    The outline of the one is seen in half axes of the other, a square from -1 to 1. Its edges are
    divided where they cross the lines of the square. Then what is outside moves to the nearest
    line, where it encloses nothing.
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
    """Return the sums of x x, y y and x y over both half axes, [3, n]."""
    _, _, ux, uy, vx, vy = table
    return np.stack([ux**2 + vx**2, uy**2 + vy**2, ux * uy + vx * vy])


def _quarter(table: Floats) -> Floats:
    """Return a quarter of each area, [n]."""
    _, _, ux, uy, vx, vy = table
    quarter: Floats = ux * vy - uy * vx
    return quarter
