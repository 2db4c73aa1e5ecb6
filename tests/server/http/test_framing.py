"""Heads and bodies, taken from what was read; tests/server/http has what is refused."""

import pytest

from fovea_preprocess.errors import InvalidRequest
from fovea_server.http.framing import Framing

LARGE = bytes(range(256)) * 4096
HEAD = b"POST /a?b=%%20 HTTP/1.1\r\nHost: x\r\nContent-LENGTH: %d\r\nExpect: 100-continue\r\n\r\n"
SOCKET = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)


def test_a_head_says_what_its_request_is():
    framing = Framing(sockets=False)
    framing.feed(HEAD % len(LARGE))
    head = framing.take_head()
    assert (head.method, head.target, head.size) == ("POST", b"/a?b=%20", len(LARGE))
    assert head.headers[1] == (b"content-length", b"%d" % len(LARGE))
    assert (head.expects, head.keeps, head.is_old, head.is_chunked) == (True, True, False, False)
    assert not framing.is_between


def test_a_piece_of_a_body_is_not_copied_and_not_kept():
    framing = Framing(sockets=False)
    framing.feed(HEAD % (2 * len(LARGE)))
    framing.take_head()
    for _ in range(2):
        framing.feed(LARGE)
        assert framing.take_piece() is LARGE
        assert framing.waiting == 0
        assert framing.take_piece() is None
    assert framing.is_between
    assert all(value is not LARGE for value in vars(framing).values())


def test_two_requests_in_one_piece():
    framing = Framing(sockets=False)
    framing.feed(HEAD % 3 + b"one" + HEAD % 5 + b"t")
    sizes = []
    while (head := framing.take_head()) is not None:
        sizes.append((head.size, framing.take_piece()))
        if not framing.is_between:
            framing.feed(b"hree")
            sizes.append((head.size, framing.take_piece()))
    assert sizes == [(3, b"one"), (5, b"t"), (5, b"hree")]


def test_a_head_that_has_begun_is_known():
    framing = Framing(sockets=False)
    for piece in (b"\r\n", b"\r"):
        framing.feed(piece)
        assert framing.take_head() is None
    framing.feed(b"\nG")
    assert framing.take_head() is None
    assert framing.has_begun_head
    framing.feed(b"ET / HTTP/1.0\r\n\r\n")
    head = framing.take_head()
    assert (head.method, head.is_old, head.keeps) == ("GET", True, False)
    assert not framing.has_begun_head


def test_nothing_is_taken_behind_the_end():
    framing = Framing(sockets=False)
    framing.feed(HEAD % 3)
    framing.end()
    framing.feed(HEAD % 3)
    assert framing.waiting == 0
    assert framing.take_head() is None


@pytest.mark.parametrize("sockets", [True, False])
def test_a_websocket_is_asked_for_where_there_are_some(sockets):
    framing = Framing(sockets=sockets)
    framing.feed(SOCKET)
    head = framing.take_head()
    assert head.is_socket == sockets
    framing.feed(b"more")
    assert framing.waiting == (0 if sockets else 4)


def test_a_websocket_waits_for_its_acceptance():
    framing = Framing(sockets=True)
    framing.feed(SOCKET + b"\x81\x80")
    with pytest.raises(InvalidRequest, match="once it is accepted"):
        framing.take_head()
