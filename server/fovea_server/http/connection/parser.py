"""The parser of requests: httptools', extended to read the body of a request with `Upgrade`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from fovea_server.http.messages import Buffer

if TYPE_CHECKING:
    from fovea_server.http.connection.protocol import ServerProtocol


class RequestParser(httptools.HttpRequestParser):
    """Reads requests, and ignores `Upgrade` headers, as RFC 9110 (7.8) allows.

    httptools ends such a request after its head, and would read its body as the next request.
    The callbacks for that end come while `should_upgrade()` is true, and must do nothing: the
    same request is then parsed once more, without `Upgrade`.
    """

    def __init__(self, protocol: ServerProtocol) -> None:
        self._head = protocol
        self.begin()

    def feed_data(self, data: Buffer) -> None:  # type: ignore[override]
        """Parse bytes, split at any place; raise HttpParserError if they are no valid request."""
        pieces = [memoryview(data)]
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
                pieces += [piece[end.args[0] :], memoryview(self._without_upgrade())]
                # A parser whose connection is to close would read nothing more: start a new one.
                self.begin()

    def begin(self) -> None:
        """Expect a new request, whatever was parsed before."""
        super().__init__(self._head)
        # As uvicorn does: bytes after the last request of a connection are no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def _without_upgrade(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._head.url, version)]
        lines += [b"%s: %s" % field for field in self._head.headers if field[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))
