"""Connections: answered in order, in time, and given up when the client goes."""

import contextlib
import http.client
import json
import re
import socket
import time

import httpx
import pytest

pytestmark = pytest.mark.real

HEAD = "Host: localhost\r\n"
WAITING = re.compile(r"^nv_inference_pending_request_count\{.*\} [1-9]", re.MULTILINE)


@pytest.fixture
def port(demo_server) -> int:
    return demo_server.port


def converse(port: int, sent: bytes, *, until_closed: bool = True) -> bytes:
    """Send bytes as they are; everything that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        if until_closed:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


def get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\n{HEAD}{more}\r\n".encode()


def test_answers_come_in_the_order_of_the_requests(port):
    paths = ["/v2", "/openapi.json", "/v2/health/live", "/v2/models/digits", "/nowhere"] * 4
    sent = b"".join(get(path) for path in paths[:-1]) + get(paths[-1], "Connection: close\r\n")
    received = converse(port, sent, until_closed=False)
    assert received.count(b"HTTP/1.1 ") == len(paths)
    marks = [b'"extensions"', b'"openapi"', b'"live"', b'"platform"', b"nowhere: Not Found"] * 4
    at = 0
    for mark in marks:
        at = received.index(mark, at) + 1


def test_many_refusals_behind_one_another(port):
    first = f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Content-Length: 2\r\n\r\n{{}}".encode()
    sent = first + get("/v2x") * 5000 + get("/v2x", "Connection: close\r\n")
    received = converse(port, sent, until_closed=False)
    assert received.count(b"HTTP/1.1 404 ") == 5001


def test_what_is_no_request_is_told_after_what_is_one(port):
    sent = get("/openapi.json") + get("/v2/models/digits") + b"\x00\x01nonsense\r\n\r\n"
    received = converse(port, sent, until_closed=False)
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.index(b'"platform"') < received.index(b"HTTP/1.1 400 ")
    assert received.endswith(b'{"error":"a request begins with METHOD TARGET HTTP/1.1"}')


@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
def test_a_body_that_breaks_off(port, more):
    head = f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}{more}Transfer-Encoding: chunked\r\n"
    received = converse(port, head.encode() + b"\r\nx\r\n", until_closed=False)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_body_that_breaks_off_behind_its_answer_has_no_second_one(port):
    sent = f"GET /v1/models HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent.encode())
        received = connection.recv(65_536)
        connection.sendall(b"no chunk\r\n")
        while piece := connection.recv(65_536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("target", ["http://localhost", "http://localhost?a=b"])
def test_a_target_without_a_path_is_the_root(port, target):
    received = converse(port, get(target, "Connection: close\r\n"), until_closed=False)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"name":"fovea"' in received


def test_an_old_client_and_one_that_wants_no_body(port):
    old = converse(port, f"GET /v2/health/live HTTP/1.0\r\n{HEAD}\r\n".encode(), until_closed=False)
    assert b"connection: close" in old
    assert old.endswith(b'{"live":true}')
    head = converse(
        port,
        b"HEAD /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        until_closed=False,
    )
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")


def test_a_client_that_asks_before_it_sends(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}"
            "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert connection.recv(1024).startswith(b"HTTP/1.1 500 ")


def test_a_body_in_chunks(port):
    body = json.dumps({"inputs": []}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    sent = (
        f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Connection: close\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    received = converse(port, sent.encode() + chunks, until_closed=False)
    assert b"expected 1 inputs but got 0 inputs" in received


def test_a_request_in_pieces_of_any_size(port):
    sent = (
        f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Connection: close\r\n"
        'Content-Length: 13\r\n\r\n{"inputs":[]}'
    ).encode()
    for size in (1, 3, 7, 50, len(sent) - 12):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(sent), size):
                connection.sendall(sent[at : at + size])
                time.sleep(0.001)
            assert b"expected 1 inputs but got 0 inputs" in connection.recv(65_536)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_told_to_a_client_that_sends_first(
    demo_repository, serve, declared
):
    server = serve(demo_repository, "--http-max-input-size=1000000")
    body = bytes(20_000_000)
    content = body if declared else (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    answer = httpx.post(f"{server.url}/v2/models/digits/infer", content=content)
    assert answer.status_code == 400
    assert "exceeds the maximum allowed value of 1000000 bytes" in answer.json()["error"]


def test_a_body_that_does_not_come(demo_repository, serve, monkeypatch):
    monkeypatch.setenv("FOVEA_BODY_TIMEOUT_S", "0.3")
    server = serve(demo_repository)
    sent = f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n{{".encode()
    received = converse(server.port, sent, until_closed=False)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"the body did not arrive within 0.3 s" in received


def test_a_client_that_goes_away_frees_its_place(shared, serve):
    repository = shared / "data" / "triton" / "models"
    server = serve(repository, "--model-control-mode=explicit", "--load-model=slow_identity")
    model = httpx.get(f"{server.url}/v2/models/slow_identity").json()
    tensor = {
        "name": model["inputs"][0]["name"],
        "datatype": model["inputs"][0]["datatype"],
        "shape": [1] * len(model["inputs"][0]["shape"]),
        "data": [1],
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    sent = (
        f"POST /v2/models/slow_identity/infer HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    metrics, until = f"http://127.0.0.1:{server.metrics_port}/metrics", time.monotonic() + 60
    with contextlib.ExitStack() as clients:
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", server.port))
            clients.enter_context(client).sendall(sent)
        while not WAITING.search(httpx.get(metrics).text) and time.monotonic() < until:
            pass
    stats = f"{server.url}/v2/models/slow_identity/stats"
    while time.monotonic() < until:
        counted = httpx.get(stats).json()["model_stats"][0]["inference_stats"]
        if counted["fail"]["count"]:
            break
        time.sleep(0.05)
    assert counted["fail"]["count"] > 0, "given up before it was begun"
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /v1/models/digits/predict", "X-Request-Timeout-Ms: 30\r\n", 504),
        ("POST /v1/models/digits/predict", "X-Request-Timeout-Ms: never\r\n", 422),
        ("POST /v1/models/digits/predict", "Content-Encoding: br\r\n", 400),
        ("POST /v1/models/digits/versions/x/predict", "", 404),
        ("POST /v1/models/none/predict", "", 404),
        ("POST /v1/none", "", 404),
        ("POST /none", "", 404),
        ("DELETE /v1/models/digits/predict", "", 405),
        ("GET /v1/models", "", 200),
    ],
)
def test_the_rest_of_a_body_is_no_request(demo_server, request_line, headers, status):
    rest = get("/v1/models") * 20_000
    head = f"{request_line} HTTP/1.1\r\n{HEAD}{headers}Content-Length: {len(rest) + 1}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", demo_server.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == status
        answer.read()
        after = b""
        # A server that closes while a client sends may break the connection.
        with contextlib.suppress(ConnectionError):
            connection.sendall(rest + get("/v2x", "Connection: close\r\n"))
            while piece := connection.recv(65_536):
                after += piece
    # Either nothing more, or the body is dropped and the request after it is answered.
    assert after.count(b"HTTP/1.1 ") == (0 if answer.will_close else 1)
    assert answer.will_close or after.startswith(b"HTTP/1.1 404 ")


def test_a_body_over_the_limit_ends_its_v1_connection(demo_server):
    head = f"POST /v1/models/digits/predict HTTP/1.1\r\n{HEAD}Content-Length: {65 << 20}\r\n\r\n"
    received = converse(demo_server.port, head.encode() + b"{", until_closed=False)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in received


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "one Host header"),
        ("GET /docs HTTP/1.1\r\n\r\n", "one Host header, and this one has 0"),
        ("\nGET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", "METHOD TARGET HTTP/1.1"),
        ("GET /v2 HTTP/2.0\r\nHost: localhost\r\n\r\n", "METHOD TARGET HTTP/1.1"),
        ("GET /v2\r\n\r\n", "METHOD TARGET HTTP/1.1"),
        (
            f"POST /v1/models/digits/predict HTTP/1.1\r\n{HEAD}"
            "Transfer-Encoding: gzip, chunked\r\n\r\n",
            "the only Transfer-Encoding that is understood is chunked",
        ),
        (
            f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Content-Length: {'0' * 5000}9\r\n\r\n",
            "Content-Length",
        ),
        (
            f"POST /v2/models/digits/infer HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n"
            "1;\0\r\nx\r\n0\r\n\r\n",
            "Invalid HTTP request",
        ),
    ],
)
def test_what_proxies_may_read_otherwise_is_refused_behind_what_is_sound(port, sent, told):
    for before in ("", get("/v2/models/digits").decode()):
        everything = (before + sent).encode() + get("/v2/health/live")
        received = converse(port, everything, until_closed=False).decode()
        assert received.count("HTTP/1.1 200 ") == bool(before)
        assert received.count("HTTP/1.1 400 ") == 1
        assert told in received.rpartition("HTTP/1.1 400 ")[2]
        assert "live" not in received
