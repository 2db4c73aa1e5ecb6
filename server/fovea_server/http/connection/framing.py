"""Follows where requests begin and end, beside the parser, which takes more than there should be.

llhttp passes over what stands before a request (line feeds, carriage returns), takes other
protocols and versions (`GET / RTSP/1.0`, HTTP/2.0, a line without a version) and codings that
nobody undoes (`gzip, chunked`), and does not look at `Host`. A proxy that reads such bytes
differently sees other requests in them. h11 refuses them.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from fovea_preprocess.errors import InvalidRequest

_REQUEST_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]+)(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_CRLF = b"\r\n"
_END = b"\r\n\r\n"
# More are those of no length; as h11 has it.
_MOST_DIGITS = 20


class Part(Enum):
    """What the next byte of a connection belongs to."""

    LINE = auto()
    """A request line, or an empty one before it, which RFC 9112 (2.2) allows."""
    HEADERS = auto()
    UNKNOWN = auto()
    """A head is whole, and `begin_body` will say what is behind it."""
    BODY = auto()
    """As many bytes as were declared; of a chunk, with the end of its line."""
    CHUNK_SIZE = auto()
    TRAILERS = auto()
    NOTHING = auto()
    """Dropped: the client has said that the request before it is its last, or it is refused."""


# To look up a member of an Enum takes as long as the rest of a step.
_LINE, _HEADERS, _UNKNOWN, _BODY, _CHUNK, _TRAILERS, _NOTHING = Part


class Framing:
    """Follows the bytes of a connection, as a parser reads them.

    Attributes:
        problem: why the next message is none. The messages before it are sound.
    """

    def __init__(self) -> None:
        self.problem: InvalidRequest | None = None
        self._part = _LINE
        self._data, self._at = b"", 0
        self._read = b""
        """Of a line that is not whole; or the end of what was read of headers."""
        self._left = 0
        self._chunked = self._last = False

    def follow(self, data: bytes) -> None:
        """Follow bytes that a parser reads next, up to the end of a head."""
        self._data, self._at = data, 0
        if self._part is _LINE and not self._read and (line := _REQUEST_LINE.match(data)):
            # A head in one piece, as most are.
            end = data.find(_END, line.end() - len(_CRLF))
            if end >= 0:
                self._part, self._at = _UNKNOWN, end + len(_END)
                return
        self._go_on()

    def begin_body(self, size: bytes, *, chunked: bool, last: bool) -> None:
        """Follow what is behind a head, as its headers have it.

        Args:
            size: of the body, as it was sent; b"" if there is none, or it is `chunked`.
            chunked: it comes in chunks.
            last: the client closes the connection after this message.
        """
        if len(size) > _MOST_DIGITS:
            raise InvalidRequest("the Content-Length is no size of a body")
        self._left = left = int(size) if size else 0
        self._chunked, self._last = chunked, last
        if chunked:
            self._part = _CHUNK
        elif left:
            self._part = _BODY
        else:
            self._end_message()
        if self._at < len(self._data):
            self._go_on()

    def _go_on(self) -> None:
        size = len(self._data)
        try:
            while self._at < size and self._part is not _UNKNOWN:
                if self._part is _LINE:
                    self._follow_line()
                elif self._part is _BODY:
                    self._follow_body(size - self._at)
                elif self._part is _CHUNK:
                    self._follow_chunk_size()
                elif self._part is _NOTHING:
                    break
                else:
                    self._follow_fields()
        except InvalidRequest as problem:
            self.problem, self._part = problem, _NOTHING
        if self._part is not _UNKNOWN:
            self._data = b""

    def _follow_line(self) -> None:
        whole = None if self._read else _REQUEST_LINE.match(self._data, self._at)
        if whole is not None:
            self._at = whole.end()
        else:
            line = self._line()
            if line is None or line == _CRLF:
                return
            if _REQUEST_LINE.fullmatch(line) is None:
                raise InvalidRequest("a request begins with METHOD TARGET HTTP/1.1")
        self._part, self._read = _HEADERS, _CRLF

    def _follow_chunk_size(self) -> None:
        line = self._line()
        if line is None:
            return
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise InvalidRequest("a chunk of the body does not begin with its size")
        size = int(found[1], 16)
        self._left = size + len(_CRLF)
        self._part, self._read = (_BODY, b"") if size else (_TRAILERS, _CRLF)

    def _line(self) -> bytes | None:
        """Read on in a line; None where it is not whole."""
        end = self._data.find(b"\n", self._at) + 1
        self._read += self._data[self._at : end or None]
        self._at = end or len(self._data)
        if not end:
            return None
        line, self._read = self._read, b""
        return line

    def _follow_fields(self) -> None:
        """Read on to the empty line behind headers or trailers."""
        # It may have begun in the piece before.
        found = (self._read + self._data[self._at : self._at + 3]).find(_END)
        end = self._at + found - len(self._read)
        if found < 0:
            end = self._data.find(_END, self._at)
        if found < 0 and end < 0:
            self._read = (self._read + self._data[max(self._at, len(self._data) - 3) :])[-3:]
            self._at = len(self._data)
            return
        self._at = end + len(_END)
        if self._part is _HEADERS:
            self._part, self._read = _UNKNOWN, b""
        else:
            self._end_message()

    def _follow_body(self, arrived: int) -> None:
        taken = min(self._left, arrived)
        self._left -= taken
        self._at += taken
        if not self._left and self._chunked:
            self._part = _CHUNK
        elif not self._left:
            self._end_message()

    def _end_message(self) -> None:
        self._part, self._read = _NOTHING if self._last else _LINE, b""
