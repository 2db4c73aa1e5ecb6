"""Formats sizes and counts for messages."""

from __future__ import annotations


def size_text(size: int) -> str:
    """Format a number of bytes with the largest unit that fits: 64 MiB, 9.8 KiB, 100 bytes."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: 1 image, 2 images, 3 boxes."""
    plural = "" if number == 1 else "es" if noun[-1] in "sx" else "s"
    return f"{number} {noun}{plural}"
