"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things: 1 image, 2 images, 3 boxes."""
    plural = "" if number == 1 else "es" if noun[-1] in "sx" else "s"
    return f"{number} {noun}{plural}"
