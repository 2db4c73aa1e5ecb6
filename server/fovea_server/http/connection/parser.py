"""The parser of requests: httptools', with a stricter framing, and without `Upgrade`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import httptools

from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.connection.framing import Framing
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

    def begin_body(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Check a head, before the protocol acts on it; InvalidRequest: it is none.

        Args:
            headers: of the head, which is whole; names in lower case.
        """
        if self._framing.problem is not None:
            raise self._framing.problem
        fields = dict(headers)
        if len(fields) < len(headers) or b"host" not in fields:
            hosts = sum(name == b"host" for name, _ in headers)
            # HTTP/1.0 needs none.
            if hosts > 1 or (not hosts and self.get_http_version() != "1.0"):
                raise InvalidRequest(f"a request has one Host header, and this one has {hosts}")
            codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
            if codings not in ([], [b"chunked"]):
                raise InvalidRequest("a body has one Transfer-Encoding, and that is chunked")
        # llhttp has refused a size beside it, and a second size.
        coding = fields.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise InvalidRequest("the only Transfer-Encoding that is understood is chunked")
        self._framing.begin_body(
            fields.get(b"content-length", b""),
            chunked=coding is not None,
            last=not self.should_keep_alive(),
        )

    def _restart(self) -> None:
        super().__init__(self._head)
        # As uvicorn does: bytes after the last request of a connection are no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def _without_upgrade(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._head.url, version)]
        lines += [b"%s: %s" % field for field in self._head.headers if field[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))
