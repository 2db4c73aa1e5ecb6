"""Connections, byte by byte: answered in order, and what is no request is refused."""

import contextlib
import http.client
import json
import re
import socket

import httpx
import pytest

from fovea_server.http.v1.schemas import PredictAnswer

pytestmark = pytest.mark.slow

PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
HEAD = "Host: localhost\r\n"
CLOSE = "Connection: close\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
NO_REQUEST = "METHOD TARGET HTTP/1.1"


def get(path: str, more: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\n{HEAD}{more}\r\n".encode()


def post(path: str, more: str, body: bytes = b"") -> bytes:
    return get(path, more, "POST") + body


def converse(port: int, *sent: bytes) -> bytes:
    """Send each of these once the one before is answered; everything that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        received = b""
        for piece in sent:
            connection.sendall(piece)
            received += connection.recv(65_536)
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                received += piece
    return received


def statuses(received: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


HEADS = ("/", "/docs", "/openapi.json", "/v2", "/v2/health/live", "/v2/models/nobody/config")
# Bytes that are sent, statuses of the responses, and texts in them, in order.
CONVERSATIONS = {
    "in order": (
        [b"".join(map(get, ("/openapi.json", "/v2/models/digits", "/nowhere")))
         + get("/v2", CLOSE)],
        [200, 200, 404, 200],
        ['"openapi"', '"platform"', "nowhere: Not Found", '"extensions"'],
    ),
    "many refusals": (
        [post(INFER, "Content-Length: 2\r\n", b"{}") + get("/v2x") * 5000 + get("/v2x", CLOSE)],
        [500, *[404] * 5001],
        [],
    ),
    "no request behind requests": (
        [get("/openapi.json") + get("/v2/models/digits") + b"\0\1nonsense\r\n\r\n"],
        [200, 200, 400],
        ['"platform"', '{"error":"the first line of a request must be METHOD TARGET HTTP/1.1"}'],
    ),
    "no HTTP": ([b"nothing of HTTP\r\n\r\n"], [400], ["x-request-id: ", NO_REQUEST]),
    "a body that breaks off": (
        [post(PREDICT, CHUNKED, b"zz\r\n")], [400], ["x-request-id: "]
    ),
    "a body that breaks off over v2": (
        [post(INFER, CHUNKED, b"x\r\n")], [400], ["x-request-id: "]
    ),
    "a body that breaks off where it is asked for": (
        [post(INFER, f"Expect: 100-continue\r\n{CHUNKED}", b"x\r\n")], [400], []
    ),
    "a body that breaks off behind its answer": (
        [get("/v1/models", CHUNKED) + b"1\r\nx\r\n", b"no chunk\r\n"], [200], []
    ),
    "a body that is asked for": (
        [post(INFER, f"Content-Length: 2\r\nExpect: 100-continue\r\n{CLOSE}"), b"{}"],
        [100, 500],
        [],
    ),
    "a body in chunks": (
        [post(INFER, CHUNKED + CLOSE)
         + b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"inputs":[]}') + b"0\r\n\r\n"],
        [400],
        ["expected 1 inputs but got 0 inputs"],
    ),
    "a body over the limit": (
        [post(PREDICT, f"Content-Length: {65 << 20}\r\n", b"{")],
        [413],
        ["connection: close", "64 MiB", "--http-max-input-size"],
    ),
    "a target without a path": ([get("http://localhost?a=b", CLOSE)], [200], ['"name":"fovea"']),
    "an old client": (
        [f"GET /v2/health/live HTTP/1.0\r\n{HEAD}\r\n".encode()],
        [200],
        ["connection: close", '{"live":true}'],
    ),
    "a check of HAProxy": ([b"GET /v2/health/live HTTP/1.0\r\n\r\n"], [200], ['{"live":true}']),
    # Bytes of a body would be taken for the beginning of the next answer.
    "no bodies behind HEAD": (
        [b"".join(get(path, method="HEAD") for path in HEADS)
         + get("/v2/health/live", CLOSE)],
        [*[200] * 5, 404, 200],
        ["\r\n\r\nHTTP/1.1"] * 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "expected", "marks"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation(demo_server, sent, expected, marks):
    received = converse(demo_server.port, *sent)
    assert statuses(received) == expected
    at = 0
    for mark in marks:
        at = received.index(mark.encode(), at) + 1


# Proxies may read these requests in another way.
DOUBTFUL = [
    ("GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "has 2 Host headers"),
    ("GET /docs HTTP/1.1\r\n\r\n", "has 0 Host headers"),
    ("\nGET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", NO_REQUEST),
    ("GET /v2 HTTP/2.0\r\nHost: localhost\r\n\r\n", NO_REQUEST),
    ("GET /v2\r\n\r\n", NO_REQUEST),
    (
        post(PREDICT, "Transfer-Encoding: gzip, chunked\r\n").decode(),
        "supported Transfer-Encoding is chunked",
    ),
    (post(INFER, f"Content-Length: {'0' * 5000}9\r\n").decode(), "Content-Length"),
    (post(INFER, CHUNKED, b"1;\0\r\nx\r\n0\r\n\r\n").decode(), "Invalid HTTP request"),
]


@pytest.mark.parametrize(("sent", "told"), DOUBTFUL)
def test_what_is_doubtful_is_refused_also_behind_what_is_sound(demo_server, sent, told):
    for before, expected in ((b"", [400]), (get("/v2/models/digits"), [200, 400])):
        received = converse(demo_server.port, before + sent.encode() + get("/v2/health/live"))
        assert statuses(received) == expected
        assert told in received.decode().rpartition("HTTP/1.1 400 ")[2]


def test_images_behind_one_another_by_both_ways_and_in_chunks(demo_server, scene):
    size = f"Content-Length: {len(scene)}\r\n"
    by_fastapi = post(PREDICT, f"{size}Content-Encoding: identity\r\n", scene)
    chunks = b"%x\r\n%s\r\n" * 2 % (5, scene[:5], len(scene) - 5, scene[5:]) + b"0\r\n\r\n"
    last = post(PREDICT, size + CLOSE, scene)
    sent = post(PREDICT, size, scene) + by_fastapi + post(PREDICT, CHUNKED, chunks) + last
    received = converse(demo_server.port, sent)
    assert statuses(received) == [200] * 4
    first = httpx.post(demo_server.url + PREDICT, content=scene).json()["images"]
    bodies = re.findall(rb"\r\n\r\n(\{.*?\"total\":[^}]*\}\})", received)
    assert [json.loads(body)["images"] for body in bodies] == [first] * 4
    PredictAnswer.model_validate(json.loads(bodies[0]), strict=True)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", PREDICT, "X-Request-Timeout-Ms: 30\r\n", 504),
        ("POST", PREDICT, "X-Request-Timeout-Ms: never\r\n", 422),
        ("POST", PREDICT, "Content-Encoding: br\r\n", 400),
        ("POST", "/v1/models/digits/versions/x/predict", "", 404),
        ("POST", "/v1/models/none/predict", "", 404),
        ("POST", "/v1/none", "", 404),
        ("POST", "/none", "", 404),
        ("DELETE", PREDICT, "", 405),
        ("GET", "/v1/models", "", 200),
    ],
)
def test_the_rest_of_a_body_is_no_request(demo_server, method, path, headers, status):
    rest = get("/v1/models") * 20_000
    head = get(path, f"{headers}Content-Length: {len(rest) + 1}\r\n", method)
    with socket.create_connection(("127.0.0.1", demo_server.port), timeout=60) as connection:
        connection.sendall(head + b"{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == status
        answer.read()
        after = b""
        # A server that closes while a client sends may break the connection.
        with contextlib.suppress(ConnectionError):
            connection.sendall(rest + get("/v2x", CLOSE))
            while piece := connection.recv(65_536):
                after += piece
    # Either nothing more, or the body is dropped and the request after it is answered.
    assert statuses(after) == ([] if answer.will_close else [404])


def test_the_port_of_the_metrics(demo_server):
    for path in ("/metrics", "/other"):
        url = f"http://127.0.0.1:{demo_server.metrics_port}{path}"
        with httpx.Client() as client:
            get, head, options = (client.request(each, url) for each in ("GET", "HEAD", "OPTIONS"))
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == get.headers["content-type"]
            assert (int(head.headers["content-length"]) > 0) == bool(get.content)
            assert (options.status_code, options.content) == (200, b"")
            refused = client.post(url, content=b"x")
            assert client.get(url, headers={"Host": "evil.example"}).status_code == 403
        assert refused.status_code == 405
        assert options.headers["allow"] == refused.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("sent", [b"X-Padding: " + b"x" * 8000 + b"\r\n", None])
def test_what_does_not_end_is_cut_off(demo_server, sent):
    """Headers without end, and the body of a request that is refused."""
    head = b"GET / HTTP/1.1\r\n" if sent else post("/v1/models/nobody/predict", CHUNKED)
    with socket.create_connection(("127.0.0.1", demo_server.port), timeout=30) as connection:
        connection.sendall(head)
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(sent or b"1000\r\n" + bytes(0x1000) + b"\r\n")
