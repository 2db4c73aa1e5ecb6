"""Reads the long arrays of a JSON document in pieces.

Parsing holds the interpreter's lock. A document with millions of numbers in one call would block
the whole process, in any thread; pieces do not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from fovea_server.tensors.triton_json import MAX_DEPTH, loads, parse_json, too_deep

LONG = 262_144
"""Bytes of JSON that take longer to read than the event loop should stand still."""

# Parsing this many bytes takes about a millisecond; an array up to this size is not long.
_PIECE = 131_072
# Bytes that are searched for arrays in one step, and the overlap of two steps, because the
# beginning of an array may lie across their border.
_WINDOW, _OVERLAP = 1 << 20, 1024
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# An element that stands for those before a piece in its list.
_BEFORE = b"0"


class _Piece(NamedTuple):
    """A part of an array between two commas, with the brackets that are open on either side."""

    begin: int
    end: int
    open_before: int
    open_after: int


@dataclass(slots=True, eq=False)
class LongArray:
    """An array that is not parsed yet. Iterating gives lists of its elements, nested."""

    text: bytes | bytearray
    pieces: list[_Piece]

    def __iter__(self) -> Iterator[list[Any]]:
        for begin, end, before, after in self.pieces:
            opened = b"[" * before + _BEFORE if before else b""
            text = opened + self.text[begin:end] + b"]" * after
            elements = loads(text, (begin - len(opened)).__add__)
            if before:
                innermost = elements
                for _ in range(before - 1):
                    innermost = innermost[0]
                del innermost[0]
            yield elements


def parse_long(text: bytes | bytearray, keys: Iterable[str]) -> tuple[Any, dict[str, LongArray]]:
    """Parse a document, except the long arrays that are members with one of the keys.

    Returns:
        The value, with a string in place of each long array; and the arrays by that string.
    """
    if len(text) <= LONG:
        return parse_json(text), {}
    names = b"|".join(re.escape(orjson.dumps(key)) for key in keys)
    beginning = re.compile(rb"(?<!\\)(?:%s)\s{0,99}:\s{0,99}\[" % names)
    # No client can guess it.
    secret = secrets.token_hex(16)
    arrays: dict[str, LongArray] = {}
    kept: list[bytes | bytearray] = []
    done = at = 0
    while at < len(text):
        found = beginning.search(text, at, at + _WINDOW)
        if found is None:
            at += _WINDOW - _OVERLAP
            continue
        at = found.end()
        pieces = _pieces(text, at - 1)
        if pieces is not None:
            name = f"{secret}-{len(arrays)}"
            arrays[name] = LongArray(text, pieces)
            kept += (text[done : at - 1], b'"%s"' % name.encode())
            done = at = pieces[-1].end
    kept.append(text[done:])

    def place(at: int) -> int:
        for name, array in arrays.items():
            begin, end = array.pieces[0].begin, array.pieces[-1].end
            if at > begin:
                at += end - begin - len(f'"{name}"')
        return at

    return parse_json(b"".join(kept), place), arrays


def _pieces(text: bytes | bytearray, begin: int) -> list[_Piece] | None:
    """Split the array at `begin`; None if it is short, no array, or contains objects."""
    pieces: list[_Piece] = []
    at, opened, size = begin, 0, _PIECE
    while True:
        bare = _without_strings(bytes(text[at : at + size]))
        codes = np.frombuffer(bare, np.uint8)
        steps = (codes == ord("[")).astype(np.int32)
        steps -= codes == ord("]")
        levels = opened + np.cumsum(steps)
        closed = levels == 0
        cut = int(closed.argmax()) + 1 if closed.any() else _last_comma(bare)
        if bare.find(b"{", 0, cut) >= 0:
            return None
        if levels[:cut].max(initial=0) > MAX_DEPTH:
            raise too_deep()
        if closed.any():
            return [*pieces, _Piece(at, at + cut, opened, 0)] if pieces else None
        if cut > 0:
            after = int(levels[cut])
            pieces.append(_Piece(at, at + cut, opened, after))
            at, opened, size = at + cut, after, _PIECE
        elif at + size < len(text):
            # One element may be longer than a piece.
            size *= 2
        else:
            return None


def _without_strings(piece: bytes) -> bytes:
    """Blank out strings, keeping the length; ends before a string that is cut off."""
    if b'"' not in piece:
        return piece
    bare = _STRING.sub(lambda found: b"0" * len(found[0]), piece)
    cut_off = bare.find(b'"')
    return bare if cut_off < 0 else bare[:cut_off]


def _last_comma(bare: bytes) -> int:
    """Find the last comma that follows an element; 0 if there is none but the first byte."""
    # A comma after a bracket or another comma is an error, which a cut there would hide.
    at = len(bare)
    while (at := bare.rfind(b",", 0, at)) > 0:
        before = at - 1
        while before > 0 and bare[before] in b" \t\r\n":
            before -= 1
        if bare[before] not in b"[,: \t\r\n":
            return at
    return 0
