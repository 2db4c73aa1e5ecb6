"""A body that arrives in pieces."""

from __future__ import annotations


class Body:
    """Joins pieces; a single piece is not copied.

    It takes memory only for pieces that have arrived; the declared length is not trusted.
    """

    def __init__(self) -> None:
        self._bytes: bytes | bytearray = b""

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        if not self._bytes:
            self._bytes = piece
            return
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        # A bytearray grows by a share of its size, so it is seldom copied.
        self._bytes += piece

    def take(self) -> bytes | bytearray:
        """Return all pieces joined, and forget them."""
        whole, self._bytes = self._bytes, b""
        return whole
