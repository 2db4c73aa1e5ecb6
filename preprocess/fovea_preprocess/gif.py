"""Reads the size of a GIF. The first frame may be larger than the size in the file's header.

Source: GIF89a specification.
"""

from __future__ import annotations

import struct

SIGNATURE = b"GIF8"

_EXTENSION, _IMAGE = 0x21, 0x2C
# Largest number of comment and metadata blocks (255 bytes each) before the first frame.
_MAX_BLOCKS = 4096


def pixels_of(data: bytes | bytearray) -> int | None:
    """Return the number of pixels of the canvas.

    The canvas is the smallest image that contains both the size in the header and the first frame.

    Returns:
        The number of pixels; None if no frame follows the header.

    Raises:
        IndexError, struct.error: the file ends too early.
    """
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at, blocks = 13 + _palette_bytes(flags), 0
    while data[at] == _EXTENSION:
        at += 2
        while data[at]:
            at += 1 + data[at]
            blocks += 1
            if blocks > _MAX_BLOCKS:
                return None
        at += 1
    if data[at] != _IMAGE:
        return None
    left, top, columns, rows = struct.unpack_from("<HHHH", data, at + 1)
    return int(max(width, left + columns) * max(height, top + rows))


def _palette_bytes(flags: int) -> int:
    return 3 << (1 + (flags & 7)) if flags & 0x80 else 0
