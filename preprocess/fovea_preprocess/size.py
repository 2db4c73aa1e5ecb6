"""Numbers of bytes, for people."""

from __future__ import annotations


def size_text(size: int) -> str:
    """A number of bytes in the largest unit that it fills: 64 MiB, 9.8 KiB, 100 bytes."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"
