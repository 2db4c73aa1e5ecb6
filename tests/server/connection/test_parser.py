"""Requests with and without `Upgrade` are the same requests, however their bytes are cut."""

import httptools
import pytest

from fovea_connection.parser import RequestParser

WISH = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
REQUESTS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\n%sContent-Length: 6\r\n\r\nGET /x"
    b"PUT /b?c HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nGET \r\n0\r\nUpgrade: x\r\n\r\n"
    b"GET /c HTTP/1.1\r\nHost: x\r\n%s\r\n"
    b"GET /d HTTP/1.1\r\nHost: x\r\n\r\n"
)
WITH = REQUESTS.replace(b"%s", WISH.replace(b"close", b"keep-alive"))
WITHOUT = REQUESTS.replace(b"%s", b"Connection: keep-alive, Upgrade\r\n")


class Collected:
    """Requests as a server sees them: head and body of each that is whole."""

    def __init__(self, *segments: bytes) -> None:
        self.whole: list[tuple[object, ...]] = []
        self.url, self.headers, self.body = b"", [], b""
        self.parser = RequestParser(self)
        for segment in segments:
            self.parser.feed_data(segment)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", [], b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.parser.begin_body(self.headers)

    def on_body(self, body: bytes) -> None:
        assert not self.parser.should_upgrade()
        self.body += body

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.whole.append((self.parser.get_method(), self.url, self.headers, self.body))


def test_wherever_the_bytes_are_cut():
    plain = Collected(WITHOUT).whole
    assert [request[1] for request in plain] == [b"/a", b"/b?c", b"/c", b"/d"]
    assert [request[3] for request in plain] == [b"GET /x", b"GET ", b"", b""]
    assert Collected(*(bytes([byte]) for byte in WITH)).whole == plain
    for cut in range(len(WITH)):
        assert Collected(WITH[:cut], WITH[cut:]).whole == plain


def test_nothing_follows_a_request_that_closes():
    sent = REQUESTS.replace(b"%s", WISH)
    for cut in range(len(sent)):
        assert [request[1] for request in Collected(sent[:cut], sent[cut:]).whole] == [b"/a"]


def test_a_tunnel_is_refused():
    with pytest.raises(httptools.HttpParserError):
        Collected(b"CONNECT a:1 HTTP/1.1\r\n\r\n" + WITHOUT)
