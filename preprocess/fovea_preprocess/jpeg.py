"""Reads the headers of JPEG files without decoding their pixels.

Source: ITU T.81, B.1 and B.2.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress

import simplejpeg

SIGNATURE = b"\xff\xd8\xff"


_APP1, _START_OF_SCAN, _END = 0xE1, 0xDA, b"\xff\xd9"
# Pattern of the first marker after the pixels of a scan. Escaped bytes (FF 00) and restart markers
# are parts of the scan, so the pattern excludes them.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_COEFFICIENTS = 64
# Markers of all kinds of frame headers. The three excluded values are not frame headers.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Markers of frames that are not progressive, with Huffman or arithmetic coding.
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)

# Largest number of segments and scans to read. Cameras and editors write about a dozen segments.
_MAX_SEGMENTS = 100
_MAX_SCANS = 1000


def decoded_bytes(data: bytes | bytearray) -> int:
    """Return the size of a JPEG's decoded pixels in bytes, from its header.

    Returns:
        The size. For other formats, return `sys.maxsize`: their decoding may take long.
    """
    if data.startswith(SIGNATURE):
        with suppress(ValueError):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            return int(height * width * 3)
    return sys.maxsize


def has_metadata(data: bytes | bytearray) -> bool:
    """Return whether a JPEG may have an APP1 segment, which holds EXIF and XMP metadata.

    The answer for a file with unusual segments is True.
    """
    for marker, _ in _segments(data):
        if marker == _START_OF_SCAN:
            return False
        if marker == _APP1:
            break
    return True


def has_scans(data: bytes | bytearray) -> bool:
    """Return whether a JPEG may have several scans.

    A decoder must keep the coefficients of several scans in memory. The answer for a file with
    unusual segments is True.
    """
    components = 0
    for marker, at in _segments(data):
        if marker in _SEQUENTIAL:
            components = data[at + 9]
        elif marker == _START_OF_SCAN:
            return data[at + 4] != components
    return True


def add_end_mark(data: bytes | bytearray) -> bytes | None:
    """Return a JPEG with its end marker added.

    The last scan may still be incomplete. Only a decoder can detect this.

    Returns:
        The completed file. If the file lacks scans that its header requires, return None.
    """
    known: set[tuple[int, int]] = set()
    components: set[int] = set()
    at = 2
    for _ in range(_MAX_SCANS):
        if at + 4 > len(data) or data[at] != 0xFF:
            break
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        body = data[at + 4 : at + 2 + length]
        at += 2 + length
        if marker in _FRAMES:
            components = set(body[6::3])
        elif marker == _START_OF_SCAN:
            known |= _complete_coefficients(body)
            after = _MARKER.search(data, at)
            at = len(data) if after is None else after.start()
    every = {(one, place) for one in components for place in range(_COEFFICIENTS)}
    if not every or every - known:
        return None
    return bytes(data) + (_END[1:] if data[-1:] == _END[:1] else _END)


def _complete_coefficients(scan: bytes | bytearray) -> set[tuple[int, int]]:
    """Return the coefficients that a scan completes with their last bit, as (component, index)."""
    count = scan[0] if scan else 0
    if len(scan) != 4 + 2 * count:
        return set()
    first, last, bits = scan[-3:]
    if bits & 0xF:
        return set()
    return {(one, place) for one in scan[1 : 1 + 2 * count : 2] for place in range(first, last + 1)}


def _segments(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield (marker, position) of each segment, up to the first scan or unusual segment."""
    at, marker = 2, 0
    for _ in range(_MAX_SEGMENTS):
        if marker == _START_OF_SCAN or at + 10 > len(data) or data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:
            return
        yield marker, at
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
