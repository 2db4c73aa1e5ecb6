"""A body that arrives in pieces."""

from __future__ import annotations


class Body:
    """Puts pieces together: without a copy where there is one, with one where there are more.

    Args:
        declared: bytes that are to come; 0 where nobody said.

    Attributes:
        size: bytes that have come.
    """

    def __init__(self, declared: int) -> None:
        self.size = 0
        self._declared = declared
        self._bytes: bytes | bytearray = b""

    def add(self, piece: bytes) -> None:
        """The next piece."""
        at, self.size = self.size, self.size + len(piece)
        if not at:
            self._bytes = piece
            return
        if isinstance(self._bytes, bytes):
            # As large as it will be: what grows is copied again and again.
            whole = bytearray(max(self._declared, self.size))
            whole[:at] = self._bytes
            self._bytes = whole
        self._bytes[at : self.size] = piece

    def take(self) -> bytes | bytearray:
        """All that has come; nothing is left."""
        whole, self._bytes = self._bytes, b""
        return whole
