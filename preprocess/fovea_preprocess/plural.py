"""Formats numbers of things."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 image, 2 images, 3 boxes."""
    plural = "" if number == 1 else "es" if noun[-1] in "sx" else "s"
    return f"{number} {noun}{plural}"
