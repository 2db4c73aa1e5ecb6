"""A body that arrives in pieces."""

from __future__ import annotations


class Body:
    """Puts pieces together: without a copy where there is one, with one where there are more.

    It takes no more memory than what has come; what a client declares is not believed.
    """

    def __init__(self) -> None:
        self._bytes: bytes | bytearray = b""

    def add(self, piece: bytes) -> None:
        """The next piece."""
        if not self._bytes:
            self._bytes = piece
            return
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        # It grows by a share of its size, so that it is seldom copied.
        self._bytes += piece

    def take(self) -> bytes | bytearray:
        """All that has come; nothing is left."""
        whole, self._bytes = self._bytes, b""
        return whole
