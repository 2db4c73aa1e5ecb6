"""Defines places in an image: boxes, points, rotated rectangles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """Corners in pixels of the upright original."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Keypoint:
    """A named point, in pixels of the upright original; it may lie outside.

    The score is 0 to 1.
    """

    name: str
    x: float
    y: float
    score: float


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotated rectangle in pixels of the upright original; it may reach outside.

    The angle is that of the width, in radians from the x axis towards the y axis (clockwise, as y
    points down), -pi/4 to 3/4 pi; w >= h.
    """

    cx: float
    cy: float
    w: float
    h: float
    angle: float


@dataclass(frozen=True, slots=True)
class Corner:
    """A corner of a rotated rectangle, in pixels of the upright original."""

    x: float
    y: float
