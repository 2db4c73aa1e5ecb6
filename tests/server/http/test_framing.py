"""Where heads, bodies and requests begin and end: whatever h11 refuses is refused, wherever the
bytes are cut.
"""

import asyncio
import random

import h11
import pytest
from tests.server.http.conftest import Wire
from uvicorn import Config
from uvicorn.server import ServerState

from fovea_preprocess.errors import InvalidRequest
from fovea_server.byte_budget import ByteBudget
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.framing import Framing
from fovea_server.traffic.traffic import Traffic

Message = tuple[bytes, bytes, bytes]

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
    with pytest.raises(InvalidRequest):
        framing.take_head()


class Taker:
    """A connection, and the requests that it takes: method, target and body of each."""

    def __init__(self) -> None:
        self.whole: list[Message] = []
        self.wire, self._state = Wire(), ServerState()
        config = Config(self._answer, interface="asgi3", ws="none", lifespan="off", log_config=None)
        traffic = Traffic((), log_access=False)
        bounds = Bounds(most=16, patience_s=60, budget=ByteBudget(1 << 30))
        self.connection = Connection(config, self._state, {}, traffic=traffic, bounds=bounds)
        self.connection.connection_made(self.wire)

    async def _answer(self, scope, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.whole.append((scope["method"].encode(), self.connection.url, body))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def take(self, *segments: bytes) -> bool:
        """Take bytes; return False if some are refused."""
        for segment in segments:
            if not self.wire.closed:
                self.connection.data_received(segment)
            # A request takes some turns of the loop, and the one behind it begins after that.
            quiet = 0
            while quiet < 3:
                before = len(self.whole)
                await asyncio.sleep(0)
                quiet = quiet + 1 if len(self.whole) == before else 0
        return b"HTTP/1.1 400 " not in self.wire.written

    async def leave(self) -> None:
        """End what is under way."""
        self.connection.connection_lost(None)
        while self._state.tasks:
            await asyncio.sleep(0)


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n\r\n\n\r"
SOUND = (
    GET,
    POST,
    CHUNKED + b"2\r\nab\r\n0\r\n\r\n",
    CHUNKED + b'0003;a=b;c="d"\r\n\r\n\n\r\n0;e\r\nTrailer: t\r\n\r\n',
    b"GET /d?e=f HTTP/1.0\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: Upgrade\r\nContent-Length: 1\r\n\r\n.",
    b"HEAD /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)
REFUSED = (
    b"\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\rGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\n" + GET,
    b"GET /a HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nhOST: y\r\n\r\n",
    b"GET /a HTTP/1.1\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/0.9\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n",
    b"GET /a\r\n\r\n",
    b"GET /a RTSP/1.0\r\nHost: x\r\n\r\n",
    b"SOURCE /a ICE/1.0\r\nHost: x\r\n\r\n",
    b"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0000000000000000000004\r\n\r\nabcd",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"0" * 5000 + b"4\r\n\r\nabcd",
    CHUNKED + b"1;\0\r\na\r\n0\r\n\r\n",
    CHUNKED + b'1;a="\0"\r\na\r\n0\r\n\r\n',
    CHUNKED + b"1\na\n0\n\n",
    CHUNKED + b"1\r\na\r\n0\r\nA: \0\r\n\r\n",
)
# What makes the difference between one request and two.
SPICE = (
    *(bytes([byte]) for byte in b'\0\t\n\v\f\r !"#%,/0145:;=@[]axHP\x7f\x80\xff'),
    *(b"\r\n", b"\r\n\r\n", b"\n\n", b"0\r\n\r\n", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b" "),
    *(b"Host: x\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"chunked"),
    *(b"Content-Length: 03\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n", GET),
    *(b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding:\r\n", b"Upgrade: x\r\n", b";a=b", b"ff"),
)
CASES = 4_000


async def ours(*segments: bytes) -> tuple[list[Message], bool]:
    """The messages of a connection; and False if bytes were refused behind them."""
    taker = Taker()
    taken = await taker.take(*segments)
    await taker.leave()
    return taker.whole, taken


def h11s(data: bytes) -> tuple[list[Message], bool, bool]:
    """The same by h11; and True if it closes the connection behind the last message."""
    found: list[Message] = []
    while True:
        # Empty lines before a request, which RFC 9112 (2.2) asks servers to pass over.
        while data.startswith(b"\r\n"):
            data = data[2:]
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(data)
        try:
            message = whole_message(connection)
        except h11.RemoteProtocolError:
            return found, False, False
        if message is None:
            return found, True, False
        found.append(message)
        if connection.their_state is h11.MUST_CLOSE:
            return found, True, True
        data, _ = connection.trailing_data


def whole_message(connection: h11.Connection) -> Message | None:
    method = target = body = b""
    while True:
        match connection.next_event():
            case h11.Request() as request:
                method, target = request.method, request.target
            case h11.Data(data=piece):
                body += piece
            case h11.EndOfMessage():
                return method, target, body
            case _:
                return None


def cut(data: bytes, choose: random.Random) -> list[bytes]:
    places = sorted(choose.randrange(len(data) + 1) for _ in range(choose.randrange(4)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("data", SOUND)
def test_sound_requests_are_those_of_h11_wherever_they_are_cut(runner, data):
    expected, sound, closes = h11s(data)
    assert sound
    assert len(expected) == 1
    whole = b"".join([data, b"\r\n\r\n" if not closes else b"anything", b"" if closes else GET])
    count = 1 if closes else 2
    for at in range(len(whole) + 1):
        found, taken = runner.run(ours(whole[:at], whole[at:]))
        assert taken
        assert found[0] == expected[0]
        assert len(found) == count
    assert runner.run(ours(*(bytes([byte]) for byte in whole))) == (found, True)


@pytest.mark.parametrize("data", REFUSED)
def test_what_is_refused_is_refused_behind_others_too(runner, data):
    for before in (b"", GET, POST, CHUNKED + b"0\r\n\r\n"):
        whole = before + data
        for at in range(len(whole) + 1):
            found, taken = runner.run(ours(whole[:at], whole[at:]))
            assert not taken
            assert len(found) == bool(before)


def test_no_mutated_request_is_taken_that_h11_refuses(runner):
    choose = random.Random(26)
    taken = refused = 0
    for _ in range(CASES):
        data = b"".join(choose.choices(SOUND, k=choose.randrange(1, 4)))
        for _ in range(choose.randrange(1, 4)):
            at = choose.randrange(len(data) + 1)
            data = data[:at] + choose.choice(SPICE) + data[at + choose.choice((0, 0, 1, 2, 7)) :]
        found, _ = runner.run(ours(*cut(data, choose)))
        expected, _, closes = h11s(data)
        if closes:
            found = found[: len(expected)]
        assert found == expected[: len(found)], data
        taken, refused = taken + bool(found), refused + (not found)
    assert min(taken, refused) > CASES / 10


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


def test_requests_that_wish_for_another_protocol_are_the_same_requests(runner):
    plain, _ = runner.run(ours(WITHOUT))
    assert [(url, body) for _, url, body in plain] == [
        *((b"/a", b"GET /x"), (b"/b?c", b"GET "), (b"/c", b""), (b"/d", b""))
    ]
    assert runner.run(ours(*(bytes([byte]) for byte in WITH))) == (plain, True)
    for at in range(len(WITH)):
        assert runner.run(ours(WITH[:at], WITH[at:])) == (plain, True)


def test_nothing_follows_a_request_that_closes(runner):
    sent = REQUESTS.replace(b"%s", WISH)
    for at in range(len(sent)):
        found, _ = runner.run(ours(sent[:at], sent[at:]))
        assert [url for _, url, _ in found] == [b"/a"]


def test_tls_is_refused_at_once(runner):
    assert runner.run(ours(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")) == ([], False)


def test_a_tunnel_is_refused(runner):
    assert runner.run(ours(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")) == ([], False)


def test_a_body_of_tiny_chunks_is_refused(runner):
    found, taken = runner.run(ours(CHUNKED + b"1\r\nx\r\n" * 4000 + b"0\r\n\r\n"))
    assert taken
    assert len(found[0][2]) == 4000
    assert runner.run(ours(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")) == ([], False)
