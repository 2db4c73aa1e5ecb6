"""Reads the headers of JPEG files, without decoding their pixels.

Source: ITU T.81, B.1 and B.2.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import simplejpeg

SIGNATURE = b"\xff\xd8\xff"

# Cameras and editors write a dozen segments.
_MOST_SEGMENTS = 100


def decoded_bytes(data: bytes | bytearray) -> int:
    """Return the size of a JPEG's pixels, as its header says.

    Other bytes count as more than any limit: no header tells how long their decoding takes.
    """
    if data.startswith(SIGNATURE):
        with suppress(ValueError):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            return int(height * width * 3)
    return sys.maxsize


def has_metadata(data: bytes | bytearray) -> bool:
    """Return False for a JPEG without the segment APP1, which EXIF and XMP are in.

    Walks the segments before the pixels; a file of unusual ones counts as if it had metadata.
    """
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] in (0xE1, 0xFF):
            return True
        if data[at + 1] == 0xDA:
            return False
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return True
