"""Checks that a PNG is complete. Image libraries do not report this reliably."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from fovea_preprocess.errors import InvalidImage

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# (first column, first row, step between columns, step between rows) of each interlace pass.
_PLAIN = ((0, 0, 1, 1),)
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
# Number of compressed bytes to inflate in one step. Deflate expands data at most 1032 times, so the
# output of a step is limited.
_BLOCK = 1 << 14


def check_png(data: bytes) -> None:
    """Check that the checksums of all chunks are right, and that no pixel is missing.

    Pillow does not check checksums, and leaves the missing pixels of a short file black. libpng
    detects both errors, but writes messages to stderr. `data` must begin with `SIGNATURE`. The
    pixels are inflated in small steps and discarded. Source: PNG specification, third edition,
    sections 5.3, 8.1 and 11.2.1.

    Raises:
        InvalidImage: the PNG is incomplete or damaged.
    """
    needed, found = 0, 0
    stream = zlib.decompressobj()
    for number, (kind, body) in enumerate(_chunks(memoryview(data))):
        if (kind == b"IHDR") != (number == 0):
            # The caller checked only the size in the first header. A second header could contain a
            # size that needs more memory.
            raise InvalidImage(
                "the PNG does not begin with an IHDR chunk, or has a second one: save the image "
                "again"
            )
        if kind == b"IHDR":
            needed = _filtered_size(body)
        elif kind == b"IDAT":
            try:
                for start in range(0, len(body), _BLOCK):
                    if found >= needed or stream.eof:
                        break
                    found += len(stream.decompress(body[start : start + _BLOCK]))
            except zlib.error as error:
                raise InvalidImage(f"the PNG is damaged: {error}") from error
    if found < needed or not needed:
        raise InvalidImage(f"the PNG has {found} bytes of pixels, but its header requires {needed}")


def is_deep(data: bytes | bytearray) -> bool:
    """Return whether samples have 16 bits. `data` must begin with `SIGNATURE` and a header."""
    return data[24] == 16


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at, kind = len(SIGNATURE), b""
    while kind != b"IEND":
        if len(data) < at + 12:
            raise InvalidImage("the PNG ends early: send the whole file")
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if data[at + 8 + length : at + 12 + length] != struct.pack(
            ">I", zlib.crc32(body, zlib.crc32(kind))
        ):
            raise InvalidImage("the PNG is damaged or ends early: a checksum does not match")
        yield kind, body
        at += 12 + length


def _filtered_size(header: memoryview) -> int:
    """Return the inflated size in bytes. Each row consists of a filter byte and packed samples."""
    try:
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        bits = depth * _SAMPLES[colour]
    except (struct.error, KeyError) as error:
        raise InvalidImage("the PNG's header is invalid") from error
    size = 0
    for left, top, step_x, step_y in _ADAM7 if interlaced else _PLAIN:
        columns, rows = -(-(width - left) // step_x), -(-(height - top) // step_y)
        if columns > 0 and rows > 0:
            size += rows * (1 + (columns * bits + 7) // 8)
    return size
