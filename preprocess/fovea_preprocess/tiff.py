"""Reads the size of a TIFF's first image, and of the tiles that it is stored in.

A decoder takes the memory of a whole tile, which may be larger than the image.
Source: TIFF 6.0, sections 2 and 15.
"""

from __future__ import annotations

import struct
from math import prod

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_SIDES = (256, 257)
TILE_SIDES = (322, 323)
"""Tags of the width and the height of tiles."""

_SHORT, _LONG = 3, 4
# Writers use a few dozen.
_MOST_FIELDS = 512


def pixels_of(data: bytes | bytearray) -> int | None:
    """Return the pixels of the image, or of a tile if that has more; None if they are not clear.

    Raises:
        struct.error: the file ends before.
    """
    order = "<" if data[:1] == b"I" else ">"
    if data[2:3] == b"+" or data[3:4] == b"+":  # for files of over 4 GB
        return None
    (first,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, first)
    # Fields that the file has no more bytes for do not keep a reader from using the others.
    if count > _MOST_FIELDS or first + 2 + 12 * count > len(data):
        return None
    sizes: dict[int, int] = {}
    for at in range(first + 2, first + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, at)
        if tag not in _SIDES + TILE_SIDES:
            continue
        if tag in sizes or kind not in (_SHORT, _LONG) or values != 1:
            return None
        (sizes[tag],) = struct.unpack_from(order + ("H" if kind == _SHORT else "I"), data, at + 8)
    if not sizes.keys() >= set(_SIDES):
        return None
    return max(prod(sizes.get(tag, 0) for tag in tags) for tags in (_SIDES, TILE_SIDES))
