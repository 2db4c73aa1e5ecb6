"""Computes what networks take in place of a colour image, or beside it: its grey, and it enlarged.

Rows are of RGB where a network takes grey, and of 0 to 255 where it takes the image enlarged.
"""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.session import Array, TensorSpec

GREY: Final = np.array([0.299, 0.587, 0.114], np.float32)
"""Shares of R, G and B, as OpenCV and Pillow have them."""

_WHITE = 255


def is_grey(image: TensorSpec) -> bool:
    """Return whether an input takes images of one channel, [batch, 1, h, w]."""
    return len(image.shape) == 4 and image.shape[1] == 1 and image.dtype.startswith("float")


def origin_of(image: TensorSpec, origin: str) -> str:
    """Return the origin of a model's preprocessing, for people, with what it takes of RGB."""
    return f"{origin}; the network takes the grey of that RGB" if is_grey(image) else origin


def factor_of(image: TensorSpec, other: TensorSpec) -> int | None:
    """Return how many times as large as a batch of images, [n, c, h, w], another is, at least 2."""
    if len(image.shape) != 4 or len(other.shape) != 4 or image.dtype != other.dtype:
        return None
    (channels, *small), (others, *large) = image.shape[1:], other.shape[1:]
    factor = large[0] // small[0] if min(small) > 0 else 1
    same = channels == others and large == [side * factor for side in small]
    return factor if same and factor > 1 else None


def grey(rows: Array) -> Array:
    """Return the grey levels, [n, 1, h, w], of RGB rows, [n, 3, h, w]."""
    return np.tensordot(GREY, rows, (0, 1))[:, None].astype(rows.dtype)


def enlarging(length: int, factor: int) -> NDArray[np.float32]:
    """Return the matrix, [length * factor, length], that enlarges columns by bicubic interpolation.

    It is OpenCV's and OpenVINO's, whose coefficient is -.75.
    """
    sides = length, length * factor
    matrix = cv2.resize(np.eye(length, dtype=np.float32), sides, interpolation=cv2.INTER_CUBIC)
    return np.asarray(matrix, np.float32)


def enlarged(rows: Array, factor: int) -> Array:
    """Return rows of 0 to 255, [n, c, h, w], enlarged to whole levels: [n, c, h * f, w * f].

    That is what OpenCV makes of an image of 8 bits, and what such networks were trained on.
    """
    height, width = rows.shape[2] * factor, rows.shape[3] * factor
    planes = [
        cv2.resize(plane.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
        for plane in rows.reshape(-1, *rows.shape[2:])
    ]
    levels = np.rint(planes).clip(0, _WHITE).astype(rows.dtype)
    return levels.reshape(*rows.shape[:2], height, width)
