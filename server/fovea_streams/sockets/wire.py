"""The protocol of WebSockets: that of the package `websockets`, but large messages are dropped."""

from __future__ import annotations

import logging
from collections.abc import Generator

from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

# Payloads of control frames, and all parts of headers, are no longer.
_SMALL = 125
# Times the limit: more is no frame of a camera any more, and ends the connection.
_ABSURD = 8

_log = logging.getLogger("fovea_streams.websockets")
_log.setLevel(logging.WARNING)


class DroppingReader(StreamReader):
    """Reads payloads, or drops them: those over the limit, and all that is `refused`.

    `websockets` would end the connection. A dropped payload is empty.

    Attributes:
        refused: drop what is left of the message.
        over: a payload was over the limit; whoever reads the message takes it back.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._size = most, 0
        self.refused = self.over = False

    @property
    def lacks(self) -> int:
        """Bytes that the payload lacks that is under way."""
        return max(0, self._size - len(self.buffer))

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        """Read a part of a frame."""
        if n <= _SMALL:
            return (yield from super().read_exact(n))
        if n > _ABSURD * self._most:
            raise PayloadTooBig(n, self._most)
        if n > self._most:
            self.over = self.refused = True
        self._size = n
        while not self.refused and len(self.buffer) < n:
            yield
        self._size = 0
        if not self.refused:
            return (yield from super().read_exact(n))
        left = n
        while True:
            dropped = min(left, len(self.buffer))
            del self.buffer[:dropped]
            left -= dropped
            if not left:
                return bytearray()
            yield


class Wire(ServerProtocol):
    """One connection; `most` bytes of a message are the limit."""

    reader: DroppingReader

    def __init__(self, most: int) -> None:
        # The request was read before; messages are not compressed: JPEG is, already.
        super().__init__(state=OPEN, max_size=None, logger=_log)
        self.reader = DroppingReader(most)
        self.parser = self.parse()
        next(self.parser)

    def answer(self, path: str, headers: dict[bytes, bytes]) -> Response:
        """Make the answer to a request: 101, or why it is none for a WebSocket."""
        given = Headers()
        for name, value in headers.items():
            given[name.decode("latin-1")] = value.decode("latin-1")
        return self.accept(Request(path, given))
