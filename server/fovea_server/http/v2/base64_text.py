"""Bytes that travel as text."""

from __future__ import annotations

import base64

# Characters that take about a millisecond; four of them are three bytes.
_PIECE = 1 << 20


def decoded(text: str) -> bytes:
    """The bytes of a base64 text; of a long one in pieces, so that other threads get their turn.

    Raises:
        ValueError: it is not base64.
    """
    if "=" in text[:-2]:
        raise ValueError("padding that is not at the end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
