"""Shapes in an image: boxes, points and rotated boxes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A box: x1, y1 is its top left and x2, y2 its bottom right corner, in pixels of the image.

    The image is upright: its EXIF orientation is applied.
    """

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Keypoint:
    """A named point in pixels of the upright image; it may lie outside the image.

    Attributes:
        name: name of the point, e.g. "nose".
        x: column in pixels.
        y: row in pixels.
        score: confidence, 0 to 1.
    """

    name: str
    x: float
    y: float
    score: float


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotated box in pixels of the upright image; it may extend beyond the image.

    Attributes:
        cx: column of the centre in pixels.
        cy: row of the centre in pixels.
        w: longer side in pixels.
        h: shorter side in pixels.
        angle: angle of the longer side in radians, from the x axis towards the y axis (clockwise,
            because y points down), -pi/4 to 3/4 pi.
    """

    cx: float
    cy: float
    w: float
    h: float
    angle: float


@dataclass(frozen=True, slots=True)
class Corner:
    """A corner of a rotated box, in pixels of the upright image."""

    x: float
    y: float
