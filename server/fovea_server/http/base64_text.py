"""Decodes base64 in requests."""

from __future__ import annotations

import base64
import re

from fovea_preprocess.errors import InvalidImage

_DATA_URL = re.compile(r"\Adata:[^,]{0,100};base64,", re.IGNORECASE)
# Number of characters that are decoded at once; decoding them takes about a millisecond. The number
# must be a multiple of four.
_PIECE = 1 << 20


def base64_bytes(text: str) -> bytes:
    """Decode base64. Ignore line breaks, which MIME and the command `base64` insert.

    The text is decoded in pieces, so that other threads can run between two pieces.

    Raises:
        ValueError: the text is not base64.
    """
    for gap in "\n\r\t ":
        text = text.replace(gap, "")
    if "=" in text[:-2]:
        raise ValueError("the base64 text has padding before its end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)


def base64_image(text: str, what: str) -> bytes | InvalidImage:
    """Decode the base64 text of an image file. The text may be a data URL, as browsers create it.

    Returns:
        The bytes of the file. If the text is not base64, an error with `what` as the name of the
        image.
    """
    try:
        return base64_bytes(_DATA_URL.sub("", text, count=1))
    except ValueError:
        return InvalidImage(f"{what} is not base64")
