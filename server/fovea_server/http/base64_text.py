"""Decodes the base64 in requests."""

from __future__ import annotations

import base64
import re

from fovea_preprocess.errors import InvalidImage

_DATA_URL = re.compile(r"\Adata:[^,]{0,100};base64,", re.IGNORECASE)
# Decoding this many characters takes about a millisecond; a multiple of four.
_PIECE = 1 << 20


def base64_bytes(text: str) -> bytes:
    """Decode base64 in pieces, so that other threads can run between them, or raise ValueError.

    MIME and the command `base64` break lines.
    """
    for gap in "\n\r\t ":
        text = text.replace(gap, "")
    if "=" in text[:-2]:
        raise ValueError("padding that is not at the end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)


def base64_image(text: str, what: str) -> bytes | InvalidImage:
    """Decode the file of an image, also in a data URL as browsers make it.

    A text that is not base64 becomes an error that says so.
    """
    try:
        return base64_bytes(_DATA_URL.sub("", text, count=1))
    except ValueError:
        return InvalidImage(f"{what} is not base64")
