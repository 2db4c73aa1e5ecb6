"""Writes maps as PNG files."""

from __future__ import annotations

import io
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fovea_engines.detect.colours import colour
from fovea_engines.detect.maps import NOTHING

_COLOURS = 256
_LEVELS = 65_535
# Labels of large areas are quick to pack, and a better compression saves little.
_COMPRESSION = 3


class DepthFile(NamedTuple):
    """A PNG file of 16 bits: a depth is a level times `scale`, plus `offset`."""

    png: bytes
    scale: float
    offset: float


def class_png(ids: NDArray[np.uint16]) -> bytes:
    """Write classes [height, width] as an indexed PNG file, in the colours of the drawings.

    The index is the class, and 255 stands for `NOTHING`. With classes of 255 and over, it is a grey
    file of 16 bits with 65535 for `NOTHING`.
    """
    nothing = ids == NOTHING
    if ids.max(where=~nothing, initial=0) >= _COLOURS - 1:
        return _grey(ids)
    image = Image.fromarray(np.where(nothing, _COLOURS - 1, ids).astype(np.uint8)).convert("P")
    # A palette of all colours keeps the file at 8 bits.
    image.putpalette([level for index in range(_COLOURS) for level in colour(index)])
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=_COMPRESSION)
    return file.getvalue()


def mask_png(values: NDArray[np.float32]) -> bytes:
    """Write values of 0 to 1, [height, width], as a grey PNG file of 8 bits."""
    return _grey((values * 255).round().astype(np.uint8))


def picture_png(levels: NDArray[np.uint8]) -> bytes:
    """Write levels [height, width, c] of RGB, or of one channel, as a PNG file of 8 bits."""
    _, data = cv2.imencode(".png", levels[..., ::-1])
    return data.tobytes()


def depth_png(values: NDArray[np.float32]) -> DepthFile:
    """Write depths [height, width] as a grey PNG file of 16 bits, its levels over their range."""
    low, high = float(values.min()), float(values.max())
    scale = (high - low) / _LEVELS or 1.0
    levels = ((values.astype(np.float64) - low) / scale).round()
    return DepthFile(_grey(levels.astype(np.uint16)), scale, low)


def _grey(levels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    _, data = cv2.imencode(".png", levels)
    return data.tobytes()
