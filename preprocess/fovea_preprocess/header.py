"""Estimates from the header of an encoded image how much memory its decoding takes.

If the header does not contain the size, the estimate uses the largest allowed size. Otherwise, the
estimate for an unusual file could be too small.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import simplejpeg

from fovea_preprocess import gif, jpeg, png, tiff, webp

# Peak memory in bytes per pixel to decode an image, turn it upright and letterbox it. The numbers
# were measured with images of 64 megapixels. `_SCANS` and `_INK_SCANS` (CMYK) are for a JPEG with
# several scans: the decoder keeps all its coefficients in memory.
_JPEG, _SCANS, _INK_SCANS = 7, 9, 12
_WEBP, _ANIMATED_WEBP, _TIFF, _DEEP, _OTHER = 8, 16, 16, 12, 8
# Number of pixels below which a JPEG is not searched for several scans. For such small images, the
# search takes more time than an accurate estimate saves.
_FEW_PIXELS = 1 << 20


class _Cost(NamedTuple):
    pixels: int
    of_each: int


def decoding_bytes(data: bytes | bytearray, most_pixels: int) -> int:
    """Return the approximate peak memory of decoding an image, in bytes.

    Returns:
        The memory. If decoding rejects the file before it allocates memory, return 0. This is the
        case for bytes that are not an image, and for images of more than `most_pixels`.
    """
    # Files that end within their header raise these errors.
    with suppress(ValueError, IndexError, struct.error):
        cost = _cost(data, most_pixels)
        return cost.pixels * cost.of_each if cost.pixels <= most_pixels else 0
    return 0


def _cost(data: bytes | bytearray, most_pixels: int) -> _Cost:
    if data.startswith(jpeg.SIGNATURE):
        height, width, kind, _ = simplejpeg.decode_jpeg_header(data)
        if width * height <= _FEW_PIXELS or not jpeg.has_scans(data):
            return _Cost(width * height, _JPEG)
        return _Cost(width * height, _INK_SCANS if kind in ("CMYK", "YCCK") else _SCANS)
    if data.startswith(webp.SIGNATURE):
        header = webp.read_webp_header(data)
        return _Cost(header.width * header.height, _ANIMATED_WEBP if header.animated else _WEBP)
    if data.startswith(png.SIGNATURE):
        width, height = struct.unpack_from(">II", data, 16)
        return _Cost(width * height, _DEEP if png.is_deep(data) else _OTHER)
    if data.startswith(gif.SIGNATURE):
        pixels = gif.pixels_of(data)
        return _Cost(most_pixels if pixels is None else pixels, _OTHER)
    if data.startswith(b"BM"):
        width, height = struct.unpack_from("<ii", data, 18)
        if struct.unpack_from("<I", data, 14)[0] < 40:  # OS/2 header: width and height have 2 bytes
            width, height = struct.unpack_from("<HH", data, 18)
        return _Cost(abs(width * height), _OTHER)
    if data.startswith(tiff.SIGNATURES):
        pixels = tiff.pixels_of(data)
        return _Cost(most_pixels if pixels is None else pixels, _TIFF)
    return _Cost(0, 0)
