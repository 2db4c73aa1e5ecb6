"""A request that asks for another protocol (`Upgrade`) is read as any other: RFC 9110, 7.8."""

import io

import pytest
from PIL import Image
from tests.contract.wire import (
    LAST,
    LIVE,
    Answers,
    chunked,
    found,
    head,
    infer_body,
    length,
)

pytestmark = pytest.mark.slow

PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
WISHES = [
    H2C,
    ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    ("UPGRADE: foo, h2c", "CONNECTION: UPGRADE"),
    ("Connection: keep-alive", "upgrade:\tfoo \t", "connection:Upgrade\t", "Upgrade: bar"),
]
HIDDEN = b"GET /v2/models/digits HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def small_image() -> bytes:
    file = io.BytesIO()
    Image.new("L", (32, 32), 200).save(file, "PNG")
    return file.getvalue()


def requests(image: bytes) -> list[tuple[str, bytes, tuple[str, ...]]]:
    """Path, body and headers of both protocols."""
    body, json_size = infer_body(image)
    return [
        (PREDICT, image, ("Content-Type: image/jpeg",)),
        (INFER, body, (f"Inference-Header-Content-Length: {json_size}",)),
    ]


def alike(answers: Answers) -> list[tuple[int, object]]:
    return [found(answer) for answer in answers]


@pytest.mark.parametrize("wish", WISHES, ids="; ".join)
def test_the_body_is_read(door, scene, wish):
    for path, body, lines in requests(scene):
        plain = alike(door.converse(head(path, *lines, length(body)) + body + LAST))
        assert [status for status, _ in plain] == [200, 200]
        sent = head(path, *wish, *lines, length(body))
        for segments in (
            (sent + body + LAST,),
            (sent, body, LAST),
            (sent[:-1], sent[-1:] + body[:9], body[9:] + LAST),
        ):
            assert alike(door.converse(*segments)) == plain


def test_segments_of_one_byte(plain_door, small_image):
    for path, body, lines in requests(small_image):
        plain = alike(plain_door.converse(head(path, *lines, length(body)) + body + LAST))
        for sent in (
            head(path, *H2C, *lines, length(body)) + body,
            head(path, *lines, "Transfer-Encoding: chunked", *H2C) + chunked(body, 50),
        ):
            got = plain_door.converse(*(bytes([byte]) for byte in sent), LAST, pause_s=0.001)
            assert alike(got) == plain


@pytest.mark.parametrize("wish", WISHES, ids="; ".join)
def test_a_body_that_looks_like_a_request_is_not_answered(door, wish):
    for path in (PREDICT, INFER):
        refused = door.converse(head(path, length(HIDDEN)) + HIDDEN + LAST)
        assert len(refused) == 2
        for sent, body in (
            (head(path, *wish, length(HIDDEN)), HIDDEN),
            (head(path, *wish, "Transfer-Encoding: chunked"), chunked(HIDDEN, 200)),
        ):
            for segments in ((sent + body + LAST,), (sent, body, LAST)):
                assert door.converse(*segments) == refused


def test_requests_behind_one_another(door, small_image):
    wish = WISHES[0]
    wished = [head("/v2/health/live", *wish, method="GET")]
    for path, body, lines in requests(small_image):
        wished.append(head(path, *wish, *lines, length(body)) + body)
        wished.append(head(path, *lines, "Transfer-Encoding: chunked", *wish) + chunked(body, 9))
        wished.append(head(path, *lines, length(body)) + body)
    wished.append(head("/openapi.json", *wish, method="GET"))
    sent = b"".join(wished)
    for segments in ((sent,), wished, [sent[at : at + 7] for at in range(0, len(sent), 7)]):
        got = door.converse(*segments, LAST, pause_s=0.001)
        assert [status for status, _ in got] == [200] * (len(wished) + 1)
        assert got[0] == got[-1] == LIVE


LINE = b"POST /v2/models/digits/infer HTTP/1.1\r\n"
FRAMINGS = [
    b"GET /v2/models/digits HTTP/1.1\r\n\r\n",
    b"GET /openapi.json HTTP/1.1\r\n\r\n",
    b"GET /v2/health/live HTTP/1.0\r\n\r\n",
    b"POST /v2/models/digits/infer HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    LINE + b"\r\n",
    LINE + b"CONTENT-LENGTH: 2\r\n\r\n{}",
    LINE + b"content-length:2 \r\nExpect: 100-continue\r\n\r\n{}",
    LINE + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}",
    LINE + b"Transfer-Encoding: CHUNKED\r\nTrailer: X\r\n\r\n2\r\n{}\r\n0\r\nUpgrade: h2c\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\nx\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: x, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked, x\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding:\r\n chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chun\r\n ked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    LINE + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    LINE + b"Content-Length: 1\r\n 0\r\n\r\n{}",
    LINE + b"Content-Length: 2, 2\r\n\r\n{}",
    LINE + b"Content-Length: +2\r\n\r\n{}",
    LINE + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    LINE + b"X: a\rb\r\nContent-Length: 2\r\n\r\n{}",
    LINE + b"X: a\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.parametrize("request_bytes", FRAMINGS, ids=repr)
def test_the_wish_does_not_change_where_a_request_ends(plain_door, request_bytes):
    line, _, rest = request_bytes.partition(b"\r\n")
    without = plain_door.converse(request_bytes + HIDDEN + LAST)
    assert without
    for wish in WISHES[:1]:
        lines = "\r\n".join(wish).encode()
        wished = line + b"\r\n" + lines + b"\r\n" + rest + HIDDEN + LAST
        assert plain_door.converse(wished) == without


def test_nothing_is_read_behind_a_wish_for_a_tunnel(plain_door):
    for target in ("hidden:80", "/v2/models/digits"):
        for lines in ((length(HIDDEN),), ("Transfer-Encoding: chunked",), H2C, ()):
            got = plain_door.converse(head(target, *lines, method="CONNECT") + HIDDEN + LAST)
            assert got == [(400, b'{"error":"Invalid HTTP request received."}')]


def test_http2_without_a_wish_is_refused(plain_door):
    assert [status for status, _ in plain_door.converse(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")] == [
        400
    ]


def test_the_port_of_the_metrics_ignores_the_wish_too(metrics_door):
    for wish in WISHES:
        asked = head("/metrics", *wish, method="GET")
        posted = head("/metrics", *wish, length(HIDDEN))
        for segments in ((asked + posted + HIDDEN + LAST,), (asked, posted, HIDDEN, LAST)):
            got = metrics_door.converse(*segments)
            assert [status for status, _ in got] == [200, 405, 200]
            assert b"nv_cpu_utilization" in got[0][1]


def test_the_wish_may_come_with_a_wish_to_close(door, scene):
    sent = head(PREDICT, "Connection: close, Upgrade", "Upgrade: h2c", length(scene))
    for segments in ((sent + scene + LAST,), (sent, scene)):
        assert [status for status, _ in door.converse(*segments)] == [200]
