"""Writes maps as PNG files, and reads them."""

from __future__ import annotations

import base64
import io
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fovea_engines.results.colours import colour
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidResult

NOTHING: Final = 65_535
"""Stands in a map of classes for a class that the request leaves out, and for an id that is none.
"""

_COLOURS = 256
LEVELS = 65_535
"""The largest level of depth files."""
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
    scale = (high - low) / LEVELS or 1.0
    levels = ((values.astype(np.float64) - low) / scale).round()
    return DepthFile(_grey(levels.astype(np.uint16)), scale, low)


def _grey(levels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    _, data = cv2.imencode(".png", levels)
    return data.tobytes()


def to_base64(file: bytes) -> str:
    """Return a file in base64."""
    return base64.b64encode(file).decode("ascii")


def check_there(values: Array) -> None:
    """Raise InvalidResult if an answer has left a map out."""
    if not values.size:
        raise InvalidResult(
            "the result of an image has no map, for example because of mask=none: predict it "
            "again with its map"
        )


def read_classes(text: str, size: tuple[int, int]) -> NDArray[np.uint16]:
    """Read what `class_png` wrote of (height, width), in base64; ValueError where it is none."""
    # OpenCV reads the colours of an indexed file, and not the indices.
    image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
    if image.size != size[::-1] or len(image.getbands()) != 1:
        raise ValueError(f"the file is not a map of {size[1]}x{size[0]} pixels")
    levels = np.asarray(image)
    ids = levels.astype(np.uint16)
    # A class of this number is in no file of as many bits.
    ids[levels == np.iinfo(levels.dtype).max] = NOTHING
    return ids


def read_levels(text: str, size: tuple[int, int] | None = None) -> NDArray[Any]:
    """Read a PNG file of base64: uint8 or uint16 [height, width], or RGB [height, width, 3].

    ValueError where it is none, or of more channels than one, or another `size`, where that is
    given.
    """
    data = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    levels = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    if levels is None:
        raise ValueError("the response has a file that is not an image")
    if size is not None and levels.shape != size:
        raise ValueError(f"the file is not a map of {size[1]}x{size[0]} pixels")
    return levels if levels.ndim == 2 else np.ascontiguousarray(levels[..., 2::-1])
