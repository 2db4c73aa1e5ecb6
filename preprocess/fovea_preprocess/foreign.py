"""Names for files that are no image which is decoded."""

from __future__ import annotations

import re

_SIGNATURES: dict[str, str] = {
    "AVIF": r".{4}ftypavi[fs]",
    "HEIC": r".{4}ftyp(hei|hev|mif1|msf1)",
    "a video (MP4 or QuickTime)": r".{4}(ftyp|moov|mdat)",
    "JPEG 2000": r"\x00{3}\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": r"\xff\x0a|\x00{3}\x0cJXL \r\n\x87\n",
    "PDF": r"%PDF-",
    "SVG": r"\s*(<\?xml.{,500})?(<!--.{,500})?(<!DOCTYPE svg.{,500})?<svg",
    "HTML": r"\s*<(!doctype html|html)",
}
_KNOWN = [(name, re.compile(s.encode("latin-1"), re.S | re.I)) for name, s in _SIGNATURES.items()]


def description(data: bytes) -> str:
    """Say what bytes are that begin as no image which is decoded, as a sentence."""
    if not data:
        return "the image is empty"
    for name, signature in _KNOWN:
        if signature.match(data[:2048]):
            return f"this is {name}, which is not decoded"
    head = data[:8]
    readable = head.isascii() and head.decode().isprintable()
    words = f'"{head.decode()}"' if readable else head.hex(" ")
    return f"not an image in a known format (it begins with {words})"
