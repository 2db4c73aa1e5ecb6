"""Reads and writes PNG files without an image library."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _INDEXED = 0, 2, 3
_CHANNELS = {_GREY: 1, _RGB: 3, _INDEXED: 1}
_UP = 2
MAX_PIXELS = 1 << 30
"""Largest number of pixels: the limit of the server's image library."""


def read_grey(data: bytes) -> NDArray[Any]:
    """Return the levels, or the palette indices, of a PNG file: uint8 or uint16 [height, width].

    Raises:
        ValueError: the file has three channels, or `read_levels` does not support the file.
    """
    found = read_levels(data)
    if found.ndim != 2:
        raise ValueError("the PNG file has three channels, but a map has one")
    return found


def read_levels(data: bytes) -> NDArray[Any]:
    """Return the levels of a PNG file, uint8 or uint16, [height, width] or [height, width, 3] RGB.

    This function supports the PNG files that a Fovea server writes. They are not interlaced, have
    1, 8 or 16 bits, and use the filters None, Sub and Up (PNG, third edition, 9.2).

    Raises:
        ValueError: the file is damaged or of another kind.
    """
    head, packed = _chunks(data)
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    if colour not in _CHANNELS or bits not in (1, 8, 16) or interlaced:
        raise ValueError(f"a PNG file of colour type {colour} and {bits} bits is not supported")
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"a PNG file of {width} x {height} pixels is not supported")
    channels = _CHANNELS[colour]
    size, length = max(1, bits // 8) * channels, (width * bits * channels + 7) // 8
    whole = height * (1 + length)
    try:
        # Limit the output, because a small file may expand to more than the machine's memory.
        unpacked = zlib.decompressobj().decompress(packed, whole + 1)
    except zlib.error as error:
        raise ValueError(f"the PNG file is damaged: {error}") from error
    if len(unpacked) != whole:
        raise ValueError("the PNG file is damaged: its number of bytes does not match its size")
    rows = np.frombuffer(unpacked, np.uint8).reshape(height, 1 + length)
    pixels = rows[:, 1:].reshape(height, -1, size)
    found = np.empty_like(pixels)
    above = np.zeros_like(pixels[0])
    for kind, row, levels in zip(rows[:, 0].tolist(), pixels, found, strict=True):
        if kind == 0:
            levels[:] = row
        elif kind == 1:
            np.cumsum(row, axis=0, dtype=np.uint8, out=levels)
        elif kind == 2:
            np.add(row, above, out=levels)
        else:
            raise ValueError(f"a PNG file with filter {kind} is not supported")
        above = levels
    if bits == 1:
        return np.unpackbits(found[..., 0], axis=1, count=width)
    levels = found if bits == 8 else found.view(">u2").astype(np.uint16)
    return levels if channels == 3 else levels[..., 0]


def write_rgb(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels, uint8 [height, width, 3] RGB, as a PNG file with the fastest compression.

    Each row uses the filter Up, which stores the difference from the row above (PNG, third edition,
    9.2).
    """
    height, width, _ = pixels.shape
    levels = pixels.reshape(height, width * 3)
    rows = np.empty((height, 1 + width * 3), np.uint8)
    rows[:, 0], rows[0, 1:] = _UP, levels[0]
    np.subtract(levels[1:], levels[:-1], out=rows[1:, 1:])
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.data, 1)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """Return the header chunk and the compressed rows."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("the file is not a PNG file")
    at, head, packed = len(_SIGNATURE), b"", bytearray()
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            head = content
        elif kind == b"IDAT":
            packed += content
        at += length + 12
    if len(head) != 13:
        raise ValueError("the PNG file has no header")
    return head, bytes(packed)
