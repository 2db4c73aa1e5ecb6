"""Reads the size of an encoded image from its header, and what decoding it takes.

What a header leaves open counts as the most that is allowed: a file must not pass as a small one
because it is unusual.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import simplejpeg

from fovea_preprocess import gif, jpeg, png, tiff, webp

# Bytes a pixel at the peak of decoding, turning upright and letterboxing, measured with images of
# 64 megapixels. A JPEG in several scans has all its coefficients in memory.
_JPEG, _SCANS, _INK_SCANS = 7, 9, 12
_WEBP, _ANIMATED_WEBP, _TIFF, _DEEP, _OTHER = 8, 16, 16, 12, 8
# With fewer, a look at the scans is not worth its time.
_FEW_PIXELS = 1 << 20


class _Cost(NamedTuple):
    pixels: int
    of_each: int


def decoding_bytes(data: bytes | bytearray, most_pixels: int) -> int:
    """Return about how much memory decoding an image takes at its peak.

    0 for what is refused before it takes anything: what is no image, and an image of over
    `most_pixels`.
    """
    # What ends within its header.
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
        if struct.unpack_from("<I", data, 14)[0] < 40:  # of OS/2, in half the bytes
            width, height = struct.unpack_from("<HH", data, 18)
        return _Cost(abs(width * height), _OTHER)
    if data.startswith(tiff.SIGNATURES):
        pixels = tiff.pixels_of(data)
        return _Cost(most_pixels if pixels is None else pixels, _TIFF)
    return _Cost(0, 0)
