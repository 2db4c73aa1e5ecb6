"""Cuts objects out of an image: upright boxes, rotated ones, and by points."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.rotated import corners

Pixels = NDArray[np.uint8]

# Centres of the eyes, tip of the nose, corners of the mouth, in 112 x 112: where ArcFace's
# networks, and those after it, were taught to find them.
_FACE = np.array(
    [
        [38.2946, 51.6963],
        [73.5318, 51.5014],
        [56.0252, 71.7366],
        [41.5493, 92.3655],
        [70.7299, 92.2041],
    ]
)
_FACE_SIDE = 112
# Words of a corner's name -> its number, clockwise from the top left.
_CORNERS = {
    frozenset(words.split()): number
    for number, names in enumerate(
        (
            ("top left", "upper left", "tl", "lt"),
            ("top right", "upper right", "tr", "rt"),
            ("bottom right", "lower right", "br", "rb"),
            ("bottom left", "lower left", "bl", "lb"),
        )
    )
    for words in names
}
# A text is read along its longer side.
_UPRIGHT = 1.5


def box_crop(pixels: Pixels, found: Detections, index: int, padding: float) -> Pixels:
    """Cut an upright box, with `padding` of its sides on each side, as far as the image goes.

    It is a view of the image.
    """
    # As an answer has them, so that a client cuts the same.
    x1, y1, x2, y2 = (round(each, 2) for each in found.boxes[index].tolist())
    wide, high = padding * (x2 - x1), padding * (y2 - y1)
    left, top = max(0, math.floor(x1 - wide)), max(0, math.floor(y1 - high))
    return pixels[top : math.ceil(y2 + high), left : math.ceil(x2 + wide)]


def smaller(pixels: Pixels, times: int) -> Pixels:
    """Return an image of so many times fewer rows and columns, averages of its pixels."""
    made = cv2.resize(pixels, None, fx=1 / times, fy=1 / times, interpolation=cv2.INTER_AREA)
    return made.astype(np.uint8, copy=False)


def rotated_crop(
    pixels: Pixels, found: Detections, index: int, padding: float, *, scale: float = 1.0
) -> Pixels:
    """Cut a rotated box and turn it upright, by the smaller angle; a text lies along its line.

    What is cut is smaller than on the image by `scale`.
    """
    assert found.rotated is not None, "the stage was checked"
    row = found.rotated[index : index + 1].astype(np.float64)
    row[:, 2:4] *= 1 + 2 * padding
    outline = _top_first(corners(row)[0])
    wide = max(1, round(scale * float(np.hypot(*(outline[1] - outline[0])))))
    high = max(1, round(scale * float(np.hypot(*(outline[3] - outline[0])))))
    crop = _warped(pixels, outline, (wide, high))
    return np.ascontiguousarray(np.rot90(crop)) if high >= _UPRIGHT * wide else crop


def corner_order(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the indices of four points, clockwise from the top left, by their names.

    None where the names do not say which corner each of them is.
    """
    corners = [_CORNERS.get(frozenset(re.split(r"[\W_]+", name.lower()))) for name in names]
    if set(corners) != {0, 1, 2, 3} or len(corners) != 4:
        return None
    return tuple(corners.index(each) for each in range(4))


def point_crop(
    pixels: Pixels,
    found: Detections,
    index: int,
    size: tuple[int, int],
    order: tuple[int, ...] | None = None,
) -> Pixels:
    """Warp four points to the corners of (width, height); or a face.

    `order` has the indices of the four, clockwise from the top left; without it, the side that runs
    to the right most is the top. A face has five points, and keeps its shape.
    """
    assert found.keypoints is not None, "the stage was checked"
    points = found.keypoints[index, :, :2].astype(np.float64)
    if len(points) == 4:
        outline = _top_first(_clockwise(points)) if order is None else points[list(order)]
        return _warped(pixels, outline, size)
    wanted = _FACE * np.divide(size, _FACE_SIDE)
    matrix = _similarity(points, wanted)
    return cv2.warpAffine(pixels, matrix, size).astype(np.uint8, copy=False)


def _clockwise(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points in the order in which they lie around their middle."""
    x, y = (points - points.mean(axis=0)).T
    around: NDArray[np.float64] = points[np.argsort(np.arctan2(y, x))]
    return around


def _top_first(outline: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return corners that go clockwise from the top left: the top runs to the right most."""
    sides = np.roll(outline, -1, axis=0) - outline
    lengths = np.maximum(np.hypot(*sides.T), np.finfo(np.float64).tiny)
    return np.roll(outline, -int(np.argmax(sides[:, 0] / lengths)), axis=0)


def _warped(pixels: Pixels, outline: NDArray[np.float64], size: tuple[int, int]) -> Pixels:
    wide, high = size
    target = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32)
    matrix = cv2.getPerspectiveTransform(outline.astype(np.float32), target)
    crop = cv2.warpPerspective(
        pixels, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return crop.astype(np.uint8, copy=False)


def _similarity(points: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation, scale and shift [2, 3] with the least squared distances."""
    x, y = points.T
    one, none = np.ones_like(x), np.zeros_like(x)
    rows = np.concatenate([np.stack([x, -y, one, none], 1), np.stack([y, x, none, one], 1)])
    (a, b, right, down), *_ = np.linalg.lstsq(rows, wanted.T.ravel(), rcond=None)
    return np.array([[a, -b, right], [b, a, down]])
