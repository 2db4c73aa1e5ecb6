"""Base64 in requests."""

from __future__ import annotations

import base64

# Decoding this many characters takes about a millisecond; a multiple of four.
_PIECE = 1 << 20


def decoded(text: str) -> bytes:
    """Decode a base64 text, in pieces so that other threads can run between them.

    Raises:
        ValueError: it is not base64.
    """
    if "=" in text[:-2]:
        raise ValueError("padding that is not at the end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
