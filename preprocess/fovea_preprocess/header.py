"""Reads the size of an encoded image from its header, and what decoding it takes."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import simplejpeg

from fovea_preprocess import jpeg, png, webp

# Bytes a pixel that decoding takes at its peak, measured with images of 64 megapixels; those of a
# photo that is turned upright are there twice.
_JPEG, _JPEG_OF_INK, _WEBP, _ANIMATED_WEBP, _OTHER = 6, 10, 7, 16, 8
# Tags of a TIFF's width and height, and bytes of the types that they may have.
_WIDTH, _HEIGHT, _SHORT, _LONG = 256, 257, 3, 4
# They are sorted: these are among the first.
_MOST_FIELDS = 16


def decoding_bytes(data: bytes | bytearray, most_pixels: int) -> int:
    """Return about how much memory decoding an image takes at its peak; 0 for what is no image.

    Images of over `most_pixels` are refused before they take anything.
    """
    pixels, of_each = _measures(data, most_pixels)
    return min(pixels, most_pixels) * of_each


def _measures(data: bytes | bytearray, most_pixels: int) -> tuple[int, int]:
    if data.startswith(jpeg.SIGNATURE):
        with suppress(ValueError):
            height, width, kind, _ = simplejpeg.decode_jpeg_header(data)
            return width * height, _JPEG_OF_INK if kind in ("CMYK", "YCCK") else _JPEG
    elif data.startswith(webp.SIGNATURE):
        with suppress(ValueError):
            header = webp.read_webp_header(data)
            of_each = _ANIMATED_WEBP if header.animated else _WEBP
            return header.width * header.height, of_each
    elif data.startswith(png.SIGNATURE):
        width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
        return width * height, _OTHER
    elif data.startswith(b"GIF8"):
        width, height = (int.from_bytes(data[at : at + 2], "little") for at in (6, 8))
        return width * height, _OTHER
    elif data.startswith(b"BM"):
        width, height = (
            int.from_bytes(data[at : at + 4], "little", signed=True) for at in (18, 22)
        )
        return abs(width * height), _OTHER
    elif data.startswith((b"II*\0", b"MM\0*")):
        return _tiff_pixels(data), _OTHER
    elif data.startswith((b"II+\0", b"MM\0+")):  # for files of over 4 GB
        return most_pixels, _OTHER
    return 0, 0


def _tiff_pixels(data: bytes | bytearray) -> int:
    """Multiply width and height of the first image (TIFF 6.0, section 2); 0 without them."""
    order: Literal["little", "big"] = "little" if data[:1] == b"I" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    fields, first = {}, number(4, 4)
    for entry in range(first + 2, first + 2 + 12 * min(_MOST_FIELDS, number(first, 2)), 12):
        size = {_SHORT: 2, _LONG: 4}.get(number(entry + 2, 2), 0)
        fields[number(entry, 2)] = number(entry + 8, size)
    return fields.get(_WIDTH, 0) * fields.get(_HEIGHT, 0)
