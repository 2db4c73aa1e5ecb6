"""Reads the headers of JPEG files, without decoding their pixels.

Source: ITU T.81, B.1 and B.2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

import simplejpeg

SIGNATURE = b"\xff\xd8\xff"

_APP1, _START_OF_SCAN = 0xE1, 0xDA
# Huffman or arithmetic coding, not progressive.
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)

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

    A file of unusual segments counts as if it had metadata.
    """
    for marker, _ in _segments(data):
        if marker == _START_OF_SCAN:
            return False
        if marker == _APP1:
            break
    return True


def has_scans(data: bytes | bytearray) -> bool:
    """Return False for a JPEG in a single scan; in several, all of it must be kept meanwhile.

    A file of unusual segments counts as if it had several.
    """
    components = 0
    for marker, at in _segments(data):
        if marker in _SEQUENTIAL:
            components = data[at + 9]
        elif marker == _START_OF_SCAN:
            return data[at + 4] != components
    return True


def _segments(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield marker and place of the segments up to the first scan, or to one that is unusual."""
    at, marker = 2, 0
    for _ in range(_MOST_SEGMENTS):
        if marker == _START_OF_SCAN or at + 10 > len(data) or data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:
            return
        yield marker, at
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
