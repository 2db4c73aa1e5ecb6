"""Writes class maps, soft masks, depth maps and images as PNG files, and reads them."""

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
"""Value of a pixel without a class in a class map.

A pixel has no class if the request leaves its class out, or if the class id is invalid.
"""

_COLOURS = 256
LEVELS = 65_535
"""The largest level in a depth file, which has 16 bits."""
# Compression level of zlib, 0 to 9. Higher levels are slower, and hardly make class maps smaller.
_COMPRESSION = 3


class DepthFile(NamedTuple):
    """A grey PNG file of 16 bits. The depth of a pixel is its level times `scale` plus `offset`."""

    png: bytes
    scale: float
    offset: float


def class_png(ids: NDArray[np.uint16]) -> bytes:
    """Write classes [height, width] as an indexed PNG file, with the colours of drawings.

    The index of a pixel is its class id, and 255 stands for `NOTHING`. If a class id is 255 or
    more, the file is grey with 16 bits, and 65535 stands for `NOTHING`.
    """
    nothing = ids == NOTHING
    if ids.max(where=~nothing, initial=0) >= _COLOURS - 1:
        return _grey(ids)
    image = Image.fromarray(np.where(nothing, _COLOURS - 1, ids).astype(np.uint8)).convert("P")
    # The palette has all 256 entries. With a shorter palette, Pillow would write fewer than 8 bits
    # per pixel.
    image.putpalette([level for index in range(_COLOURS) for level in colour(index)])
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=_COMPRESSION)
    return file.getvalue()


def mask_png(values: NDArray[np.float32]) -> bytes:
    """Write values of 0 to 1, [height, width], as a grey PNG file of 8 bits."""
    return _grey((values * 255).round().astype(np.uint8))


def picture_png(levels: NDArray[np.uint8]) -> bytes:
    """Write levels [height, width, c] as a PNG file of 8 bits: RGB, or grey if c is 1."""
    _, data = cv2.imencode(".png", levels[..., ::-1])
    return data.tobytes()


def depth_png(values: NDArray[np.float32]) -> DepthFile:
    """Write depths [height, width] as a grey PNG file of 16 bits.

    The smallest depth becomes level 0, and the largest depth becomes `LEVELS`.
    """
    low, high = float(values.min()), float(values.max())
    scale = (high - low) / LEVELS or 1.0
    levels = ((values.astype(np.float64) - low) / scale).round()
    return DepthFile(_grey(levels.astype(np.uint16)), scale, low)


def _grey(levels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    _, data = cv2.imencode(".png", levels)
    return data.tobytes()


def to_base64(file: bytes) -> str:
    """Return the bytes of a file as base64 text."""
    return base64.b64encode(file).decode("ascii")


def check_there(values: Array) -> None:
    """Check that a result contains its map.

    Raises:
        InvalidResult: the map is empty, because the request for the response had mask=none.
    """
    if not values.size:
        raise InvalidResult(
            "the result of an image has no map, for example because of mask=none: predict it "
            "again with its map"
        )


def read_classes(text: str, size: tuple[int, int]) -> NDArray[np.uint16]:
    """Read a file that `class_png` has written, from base64.

    Args:
        text: the PNG file in base64.
        size: expected (height, width).

    Returns:
        uint16 [height, width], the class of each pixel, or `NOTHING`.

    Raises:
        ValueError: the text is not base64, or the image has another size or several channels.
    """
    # Read with Pillow, because OpenCV returns the colours of an indexed file instead of its
    # indices.
    image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
    if image.size != size[::-1] or len(image.getbands()) != 1:
        raise ValueError(f"the file is not a map of {size[1]}x{size[0]} pixels")
    levels = np.asarray(image)
    ids = levels.astype(np.uint16)
    # The largest level stands for `NOTHING`; `class_png` never writes a class with that id.
    ids[levels == np.iinfo(levels.dtype).max] = NOTHING
    return ids


def read_levels(text: str, size: tuple[int, int] | None = None) -> NDArray[Any]:
    """Read a PNG file from base64.

    Args:
        text: the PNG file in base64.
        size: expected (height, width) of a file with one channel; None accepts any image.

    Returns:
        uint8 or uint16 [height, width], or RGB [height, width, 3].

    Raises:
        ValueError: the text is not a base64 image, or the image does not have the expected size.
    """
    data = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    levels = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    if levels is None:
        raise ValueError("a file in the response is not an image")
    if size is not None and levels.shape != size:
        raise ValueError(f"the file is not a map of {size[1]}x{size[0]} pixels")
    return levels if levels.ndim == 2 else np.ascontiguousarray(levels[..., 2::-1])
