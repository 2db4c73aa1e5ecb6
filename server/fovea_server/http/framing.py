"""Splits received bytes into requests, and rejects requests that a proxy may split differently.

The parser llhttp receives only complete heads, and no other bytes. This module itself finds the end
of a body.
"""

from __future__ import annotations

import re
from enum import Enum, auto

import httptools

from fovea_preprocess.errors import InvalidRequest

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 256

# A body may contain at most 4096 chunks of less than 64 bytes, because each chunk takes a
# microsecond of the event loop.
_TINY, _MAX_TINY = 64, 4096
_MAX_DIGITS = 20

_TOKEN = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]")
_REQUEST_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_SOCKET = re.compile(rb"\r\nupgrade:[\t ]*websocket[\t ]*\r\n", re.IGNORECASE)
_SOCKET_VERSION = re.compile(rb"\r\nsec-websocket-version:[\t ]*13[\t ]*\r\n", re.IGNORECASE)
# The size of a chunk has at most 16 hexadecimal digits. A chunk extension contains no control
# characters.
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_CRLF = b"\r\n"
_NO_LINE = "the first line of a request must be METHOD TARGET HTTP/1.1"


class _Part(Enum):
    """Part of a request.

    `Framing` stores the part to which the next byte of a connection belongs.
    """

    HEAD = auto()
    """The request line and headers, or empty lines before them, which RFC 9112 (2.2) allows."""
    BODY = auto()
    """The body, if the head declares its size."""
    SIZE = auto()
    """The line with the size of a chunk."""
    CHUNK = auto()
    TRAILERS = auto()
    NOTHING = auto()
    """No part. All further bytes are dropped, because the connection will close after the last
    request or after an invalid request.
    """


# Module constants, because access to a member of an Enum takes as long as the rest of a step.
_HEAD, _BODY, _SIZE, _CHUNK, _TRAILERS, _NOTHING = _Part


class Head:
    """The head of a request, parsed by llhttp.

    Attributes:
        method: HTTP method.
        target: path and query, or another request target.
        headers: headers in order, with names in lower case.
        is_old: True for HTTP/1.0.
        keeps: True if the connection may stay open for another request.
        is_socket: True if the request opens a WebSocket. Such a request has no body.
        expects: True if the client waits for `100 Continue` before it sends the body.
        is_chunked: True if the body is chunked.
        size: size of the body in bytes; 0 for a chunked body.

    Raises:
        InvalidRequest: a proxy may read the head differently.
        httptools.HttpParserError: the bytes are not a head.
    """

    def __init__(self, data: bytes) -> None:
        self.method, self.target = "", b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_socket = self.is_old = self.keeps = self.expects = self.is_chunked = False
        self.size = 0
        self._parser = httptools.HttpRequestParser(self)
        try:
            # The parser gets only this head, and never the body.
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_socket = True
        finally:
            # Remove the reference from this object to the parser, because the parser refers back to
            # this object.
            del self._parser
        if self.method == "CONNECT":
            raise httptools.HttpParserError("the method CONNECT is not supported")
        self._check()

    def on_url(self, url: bytes) -> None:
        """Add a part of the target. llhttp calls this method."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. llhttp calls this method."""
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect":
            self.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Store the values that the parser drops after the head. llhttp calls this method."""
        self.method = self._parser.get_method().decode("ascii")
        self.is_old = self._parser.get_http_version() == "1.0"
        self.keeps = not self.is_old and self._parser.should_keep_alive()
        self.expects = self.expects and not self.is_old

    def _check(self) -> None:
        hosts = codings = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                if len(value) > _MAX_DIGITS:
                    raise InvalidRequest("the Content-Length has too many digits")
                # llhttp has already rejected an invalid length, a repeated length, and a length in
                # a chunked request.
                self.size = int(value)
            elif name == b"transfer-encoding":
                codings += 1
                self.is_chunked = value.lower() == b"chunked"
                if not self.is_chunked:
                    raise InvalidRequest("the only supported Transfer-Encoding is chunked")
        # HTTP/1.0 requires no Host header.
        if hosts != 1 and (hosts or not self.is_old):
            raise InvalidRequest(f"the request has {hosts} Host headers, but must have exactly one")
        if codings > 1:
            raise InvalidRequest("the only supported Transfer-Encoding is chunked")
        if len(self.headers) > MAX_HEADERS:
            raise InvalidRequest(
                f"the request has {len(self.headers)} headers, but at most {MAX_HEADERS} are "
                "allowed"
            )


class Framing:
    """Splits the bytes of a client into heads and bodies.

    Methods that take bytes raise InvalidRequest or httptools.HttpParserError for invalid requests.

    Args:
        sockets: True if `Upgrade` may open a WebSocket; otherwise the header is ignored.
    """

    def __init__(self, *, sockets: bool) -> None:
        self._sockets = sockets
        self._part = _HEAD
        self._read, self._at = b"", 0
        """Received bytes, and the number of them that were returned to the caller."""
        self._searched = 0
        """Number of bytes that were already searched for the end of the head."""
        self._left = 0
        """Number of remaining bytes of the body. If the body is chunked: of the chunk and the line
        end after it.
        """
        self._is_last = False
        self._tiny_chunks = self._trailer_bytes = 0

    @property
    def waiting(self) -> int:
        """Return the number of received bytes that were not returned yet."""
        return len(self._read) - self._at

    @property
    def is_between(self) -> bool:
        """Return whether the next bytes belong to a head, or are dropped."""
        return self._part is _HEAD or self._part is _NOTHING

    @property
    def has_begun_head(self) -> bool:
        """Return whether a part of a head has arrived, and the rest is missing."""
        return self._searched > 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._part is not _NOTHING:
            self._read = self._read[self._at :] + data if self.waiting else data
            self._at = 0

    def end(self) -> None:
        """Drop all received bytes that were not returned yet, and all further bytes."""
        self._part, self._read, self._at, self._searched = _NOTHING, b"", 0, 0

    def take_head(self) -> Head | None:
        """Return the next head, or None if it is incomplete."""
        while self._read.startswith(_CRLF, self._at):
            self._at += len(_CRLF)
        waiting = len(self._read) - self._at
        if not waiting or self._part is _NOTHING:
            return None
        size = self._read.find(b"\r\n\r\n", self._at + self._searched) + 4 - self._at
        is_whole = size + self._at > 3
        if waiting > MAX_HEAD_BYTES and not (is_whole and size <= MAX_HEAD_BYTES):
            raise InvalidRequest("The request's headers are too large.")
        if not is_whole:
            # Without this check, a client that sends TLS here would wait until the timeout.
            if _TOKEN.match(self._read, self._at) is None and self._read[self._at :] != b"\r":
                raise InvalidRequest(_NO_LINE)
            self._searched = max(1, waiting - 3)
            return None
        self._searched = 0
        return self._begin(self._take(size))

    def _begin(self, data: bytes) -> Head:
        if _REQUEST_LINE.match(data) is None:
            raise InvalidRequest(_NO_LINE)
        if _UPGRADE.search(data) and not (self._sockets and _asks_for_socket(data)):
            # Drop the header `Upgrade`, as RFC 9110 (7.8) allows. Otherwise llhttp would parse the
            # body as the next request.
            data = _UPGRADE.sub(b"", data)
        head = Head(data)
        if head.is_socket and self.waiting:
            raise InvalidRequest(
                "the client sent data before the server accepted the WebSocket: wait for the "
                "response with status 101"
            )
        self._is_last = head.is_socket or not head.keeps
        self._left, self._tiny_chunks = head.size, 0
        self._part = _SIZE if head.is_chunked else _BODY
        if not (head.is_chunked or head.size):
            self._end_message()
        return head

    def _end_message(self) -> None:
        self._part = _NOTHING if self._is_last else _HEAD

    def take_piece(self) -> bytes | None:
        """Return the next piece of a body, which may be empty.

        If more bytes must arrive first, return None.
        """
        if not self.waiting:
            return None
        if self._part is _BODY:
            return self._take_body()
        return self._take_chunk() if self._part is _CHUNK else self._take_line()

    def _take(self, size: int) -> bytes:
        # A slice of all bytes is the bytes object itself, so a body that arrived at once is not
        # copied.
        taken = self._read[self._at : self._at + size]
        self._at += size
        if self._at == len(self._read):
            # Release the bytes. They may take much memory, and the connection may be idle after
            # this request.
            self._read, self._at = b"", 0
        return taken

    def _take_body(self) -> bytes:
        piece = self._take(min(self._left, self.waiting))
        self._left -= len(piece)
        if not self._left:
            self._end_message()
        return piece

    def _take_line(self) -> bytes | None:
        """Parse the line with the size of a chunk, or a trailer."""
        size = self._read.find(b"\n", self._at) + 1 - self._at
        if size + self._at == 0:
            if self.waiting <= MAX_HEAD_BYTES:
                return None
            size = 0
        line = self._take(size)
        if self._part is _TRAILERS:
            self._trailer_bytes += len(line)
            if line == _CRLF:
                self._end_message()
            elif not _TRAILER.fullmatch(line) or self._trailer_bytes > MAX_HEAD_BYTES:
                raise httptools.HttpParserError("no trailer")
            return b""
        if (found := _CHUNK_SIZE.fullmatch(line)) is None:
            raise httptools.HttpParserError("a chunk has no valid size")
        if chunk := int(found[1], 16):
            self._part, self._left = _CHUNK, chunk + len(_CRLF)
            self._tiny_chunks += 1 if chunk < _TINY else -1
            if self._tiny_chunks > _MAX_TINY:
                raise InvalidRequest(
                    f"more than {_MAX_TINY} chunks of the body have less than {_TINY} bytes: send "
                    "larger chunks"
                )
        else:
            self._part, self._trailer_bytes = _TRAILERS, 0
        return b""

    def _take_chunk(self) -> bytes | None:
        if self._left > len(_CRLF):
            piece = self._take(min(self._left - len(_CRLF), self.waiting))
            self._left -= len(piece)
            return piece
        if self.waiting < self._left:
            return None
        if self._take(self._left) != _CRLF:
            raise httptools.HttpParserError("a chunk does not end with a line break")
        self._part = _SIZE
        return b""


def _asks_for_socket(head: bytes) -> bool:
    """Return whether a request opens a WebSocket (RFC 6455).

    Other upgrades are treated as plain requests.
    """
    line = head[: head.index(_CRLF)]
    is_new = line.startswith(b"GET ") and line.endswith(b"1.1")
    return is_new and bool(_SOCKET.search(head) and _SOCKET_VERSION.search(head))
