"""Reads the header of a WebP without decoding its pixels.

A decoder allocates memory for the size in the header.

Source of the format: RFC 9649.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SIGNATURE = b"RIFF"

_ANIMATED = 0x02
# Largest number of chunks to read. A file has up to six chunks, and more for each frame of an
# animation.
_MAX_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class WebPHeader:
    """The canvas size in pixels, and whether the file has more than one frame."""

    width: int
    height: int
    animated: bool


def read_webp_header(data: bytes | bytearray) -> WebPHeader:
    """Read the first chunk of a WebP.

    Raises:
        ValueError: the file is not a WebP.
    """
    kind, body = bytes(data[12:16]), data[20:30]
    if data[8:12] != b"WEBP" or len(body) < 10:
        raise ValueError("not a WebP file")
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(body[at : at + 3], "little") for at in (4, 7))
        return WebPHeader(width, height, bool(body[0] & _ANIMATED))
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return WebPHeader(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), animated=False)
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(body[at : at + 2], "little") & 0x3FFF for at in (6, 8))
        return WebPHeader(width, height, animated=False)
    raise ValueError(f"unknown first chunk {kind!r}")


def exif_of(data: bytes | bytearray) -> bytes:
    """Return the EXIF metadata; empty if there is none."""
    return next((body for kind, body in _chunks(data) if kind == b"EXIF"), b"")


def _chunks(data: bytes | bytearray) -> Iterator[tuple[bytes, bytes]]:
    at = 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            return
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            yield b"EXIF", bytes(data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
