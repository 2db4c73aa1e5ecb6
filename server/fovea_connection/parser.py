"""The parser of requests: httptools', with a stricter framing, and without `Upgrade`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

import httptools

from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.messages import Buffer
from fovea_server.traffic.call import fields

if TYPE_CHECKING:
    from fovea_connection.protocol import ServerProtocol


_REQUEST_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]+)(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_CRLF = b"\r\n"
_END = b"\r\n\r\n"
# More are those of no length; as h11 has it.
_MOST_DIGITS = 20


class Part(Enum):
    """The part of a message that the next byte of a connection belongs to."""

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
    """Follows where requests begin and end, beside llhttp, which takes more than there should be.

    It passes over what stands before a request (line feeds, carriage returns), takes other
    protocols and versions (`GET / RTSP/1.0`, HTTP/2.0, a line without a version) and codings that
    nobody undoes (`gzip, chunked`), and does not look at `Host`. A proxy that reads such bytes
    differently sees other requests in them. h11 refuses them.

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
        if not chunked and self._at + left == len(self._data):
            # A request in one piece, as most are.
            self._data = b""
            self._end_message()
            return
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


class RequestParser(httptools.HttpRequestParser):
    """Reads requests, and ignores `Upgrade` headers, as RFC 9110 (7.8) allows.

    httptools ends such a request after its head, and would read its body as the next request.
    The callbacks for that end come while `should_upgrade()` is true, and must do nothing: the
    same request is then parsed once more, without `Upgrade`.
    """

    def __init__(self, protocol: ServerProtocol) -> None:
        self._head = protocol
        self.begin()

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """Parse bytes, split at any place.

        Raises:
            InvalidRequest: they are no valid request, for a reason that a client can read.
            httptools.HttpParserError: the same, for another reason.
        """
        self._framing.follow(data)
        pieces: list[Buffer] = [data]
        while pieces:
            piece = pieces.pop()
            try:
                super().feed_data(piece)
            except httptools.HttpParserUpgrade as end:
                if self.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("CONNECT is for proxies") from None
                # The head is parsed again, so that one parser decides where every body ends, by
                # the same rules with and without `Upgrade`. It refuses headers of several lines,
                # so that a rebuilt head means the same.
                pieces += [memoryview(piece)[end.args[0] :], self._without_upgrade()]
                # A parser whose connection is to close would read nothing more: start a new one.
                self._restart()
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, InvalidRequest):
                    raise error.__context__ from None
                raise
        if self._framing.problem is not None:
            raise self._framing.problem

    def begin(self) -> None:
        """Expect a new request, whatever was parsed before."""
        self._framing = Framing()
        self._restart()

    def begin_body(self, headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Check a head, before the protocol acts on it, and return its headers by name.

        Args:
            headers: of the head, which is whole; names in lower case.

        Raises:
            InvalidRequest: it is none.
        """
        if self._framing.problem is not None:
            raise self._framing.problem
        found = fields(headers)
        if len(found) < len(headers) or b"host" not in found:
            hosts = sum(name == b"host" for name, _ in headers)
            # HTTP/1.0 needs none.
            if hosts > 1 or (not hosts and self.get_http_version() != "1.0"):
                raise InvalidRequest(f"a request has one Host header, and this one has {hosts}")
            codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
            if codings not in ([], [b"chunked"]):
                raise InvalidRequest("a body has one Transfer-Encoding, and that is chunked")
        # llhttp has refused a size beside it, and a second size.
        coding = found.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise InvalidRequest("the only Transfer-Encoding that is understood is chunked")
        self._framing.begin_body(
            found.get(b"content-length", b""),
            chunked=coding is not None,
            last=not self.should_keep_alive(),
        )
        return found

    def _restart(self) -> None:
        super().__init__(self._head)
        # As uvicorn does: bytes after the last request of a connection are no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def _without_upgrade(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._head.url, version)]
        lines += [b"%s: %s" % field for field in self._head.headers if field[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))
