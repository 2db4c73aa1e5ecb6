"""Reads the size of a TIFF's first image, and of the tiles that store it.

A decoder allocates a whole tile, which may be larger than the image.
Source: TIFF 6.0, sections 2 and 15.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import NamedTuple

from fovea_preprocess.text import counted

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_SIDES = (256, 257)
TILE_SIDES = (322, 323)
"""Tags of the fields that hold the width and the height of tiles."""

_BITS, _BANDS = 258, 277
_SHORT, _LONG = 3, 4
# Largest number of fields to read. Real files have a few dozen.
_MAX_FIELDS = 512


class _Field(NamedTuple):
    """A field in the header of an image.

    Attributes:
        values: number of values of the field.
        number: the value, if the field has one value. Otherwise the position of the values in the
            file.
    """

    tag: int
    kind: int
    values: int
    number: int


def _fields(data: bytes | bytearray) -> Iterator[_Field]:
    """Yield the fields of the first image. A BigTIFF (a format for files over 4 GB) yields none."""
    order = "<" if data[:1] == b"I" else ">"
    if data[2:3] == b"+" or data[3:4] == b"+":
        return
    (first,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, first)
    # If the table of fields is cut off, yield no field: its size fields would be unreliable,
    # because a decoder may use the rest of the fields.
    if count > _MAX_FIELDS or first + 2 + 12 * count > len(data):
        return
    for at in range(first + 2, first + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, at)
        short = kind == _SHORT and values == 1
        (number,) = struct.unpack_from(order + ("H" if short else "I"), data, at + 8)
        yield _Field(tag, kind, values, number)


def form_of(data: bytes | bytearray) -> str | None:
    """Describe the samples of a pixel, e.g. "5 bands of 8 bits".

    If the file lacks the fields, return None.
    """
    with suppress(struct.error):
        fields = {field.tag: field for field in _fields(data)}
        if _BANDS not in fields or _BITS not in fields:
            return None
        bits = fields[_BITS].number
        if fields[_BITS].values > 2:  # then the field holds the position of the values
            (bits,) = struct.unpack_from("<H" if data[:1] == b"I" else ">H", data, bits)
        return f"{counted(fields[_BANDS].number, 'band')} of {bits & 0xFFFF} bits"
    return None


def pixels_of(data: bytes | bytearray) -> int | None:
    """Return the number of pixels of the image, or of a tile if the tile has more pixels.

    If the fields do not determine the number, return None.

    Raises:
        struct.error: the file ends too early.
    """
    sizes: dict[int, int] = {}
    for field in _fields(data):
        if field.tag not in _SIDES + TILE_SIDES:
            continue
        if field.tag in sizes or field.kind not in (_SHORT, _LONG) or field.values != 1:
            return None
        sizes[field.tag] = field.number
    if not sizes.keys() >= set(_SIDES):
        return None
    return max(prod(sizes.get(tag, 0) for tag in tags) for tags in (_SIDES, TILE_SIDES))
