"""A body that is one image: the short path and FastAPI's give the same answers, bytes and all.

`Content-Encoding: identity` says nothing, and sends a request to FastAPI.
"""

import io
import json
import re
import socket
import threading
import time

import httpx
import pytest
from PIL import Image

from fovea_server.http.v1.schemas import PredictAnswer

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
BY_FASTAPI = {"Content-Encoding": "identity"}
TIMING = re.compile(rb'"timing_ms":\{[^}]*\}')

Told = tuple[bytes, list[bytes], bytes]


def read_answer(connection: socket.socket, *, has_body: bool = True) -> Told:
    """The status line, the sorted headers without the date, and the body without timings."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65_536)
        assert piece, "closed before the answer"
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    fields = (line.partition(b": ") for line in lines)
    headers = sorted(name.lower() + b": " + value for name, _, value in fields)
    size = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) if has_body else 0
    while len(body) < size:
        body += connection.recv(65_536)
    timed = TIMING.search(body)
    if timed:
        # Its numbers differ, and with them its length.
        headers = [line for line in headers if not line.startswith(b"content-length")]
    assert [line for line in headers if line.startswith(b"date: ")]
    kept = [line for line in headers if not line.startswith(b"date: ")]
    return status, kept, TIMING.sub(b"", body)


def ask(port: int, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Told:
    sent = {"Host": "localhost", "X-Request-Id": "mine", "Content-Length": str(len(body))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    if "Transfer-Encoding" in sent:
        del sent["Content-Length"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        answer = read_answer(connection, has_body=method != "HEAD")
        closes = b"connection: close" in answer[1]
        connection.settimeout(10 if closes else 0.05)
        try:
            assert connection.recv(1) == b"", "more than the answer"
            assert closes
        except TimeoutError:
            assert not closes
    return answer


def same(port: int, path: str, body: bytes = b"", **request: str) -> Told:
    """The answer, which is the same on both paths."""
    short = ask(port, path, body, **request)
    assert short == ask(port, path, body, **request, **{"Content_Encoding": "identity"})
    return short


def status_of(answer: Told) -> int:
    return int(answer[0].split()[1])


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 200),
        ("?", 200),
        ("?conf=0.9", 200),
        ("?conf=.5&iou=0.1", 200),
        ("?classes=1", 200),
        ("?classes=1&classes=2&max_det=2", 200),
        ("?classes=%221%22,2", 200),
        ("?cl%61sses=%31,+2", 200),
        ("?max_det=1&agnostic=true", 200),
        ("?agnostic=1&conf=0.001", 200),
        ("?conf=0.1&conf=0.2", 422),
        ("?conf=", 422),
        ("?conf=2", 422),
        ("?conf=high", 422),
        ("?conf=nan", 422),
        ("?classes=sofa", 422),
        ("?classes=99", 422),
        ("?max_det=0", 422),
        ("?agnostic=perhaps", 422),
        ("?speed=9", 422),
        ("?%ff=%fe", 422),
        ("?conf=0.5#fragment", 200),
    ],
)
def test_options(demo_server, scene, query, status):
    assert status_of(same(demo_server.port, PREDICT + query, scene)) == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("digits/versions/1", 200),
        ("dig%69ts", 200),
        ("digits/versions/01", 200),
        ("digits/versions/9", 404),
        ("digits/versions/0", 404),
        ("digits/versions/-1", 404),
        ("digits/versions/x", 404),
        ("digits/versions/99999999999999999999", 404),
        ("nobody", 404),
        ("nobody/versions/1", 404),
        ("digits%2Fversions%2F1", 200),
        ("..%2F..%2Fetc", 404),
        ("%00%ff", 404),
        ("digits/", 404),
    ],
)
def test_addresses(demo_server, scene, path, status):
    assert status_of(same(demo_server.port, f"/v1/models/{path}/predict", scene)) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Request_Timeout_Ms": "30000"}, 200),
        ({"X_Request_Timeout_Ms": "3e4"}, 200),
        ({"X_Request_Timeout_Ms": "0.01"}, 504),
        ({"X_Request_Timeout_Ms": "0"}, 422),
        ({"X_Request_Timeout_Ms": "never"}, 422),
        ({"X_Request_Timeout_Ms": "nan"}, 422),
        ({"Content_Type": "image/png"}, 200),
        ({"Content_Type": "text/plain; charset=utf-8"}, 200),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 200),
        ({"Content_Type": "application/JSON"}, 400),
        ({"Content_Type": "multipart/form-data"}, 400),
        ({"Accept": "application/json"}, 200),
        ({"Accept": "text/html"}, 200),
        ({"Accept": "image/jpeg;q=0.5, application/json"}, 200),
        ({"Accept": "image/jpeg;q=x"}, 200),
        ({"Accept": "application/json;q=0.1, image/png"}, 200),
        ({"Connection": "close"}, 200),
        ({"Expect": "nothing"}, 200),
    ],
)
def test_headers(demo_server, scene, headers, status):
    assert status_of(same(demo_server.port, PREDICT, scene, **headers)) == status


def test_bodies(demo_server, scene):
    port = demo_server.port
    plain = scene.replace(b"\r", b"").replace(b"\n", b"")
    for body in (b"", b"text", scene[: len(scene) // 2], scene[:-9], plain, b"\x89PNG\r\n\x1a\n"):
        assert status_of(same(port, PREDICT, body)) == 400
        same(port, PREDICT, body, Content_Type="application/x-www-form-urlencoded")
    chunks = b"%x\r\n%s\r\n" * 2 % (5, scene[:5], len(scene) - 5, scene[5:]) + b"0\r\n\r\n"
    assert status_of(same(port, PREDICT, chunks, Transfer_Encoding="chunked")) == 200
    assert status_of(same(port, PREDICT, b"0\r\n\r\n", Transfer_Encoding="chunked")) == 400


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods(demo_server, scene, method):
    assert status_of(same(demo_server.port, PREDICT, scene, method=method)) == 405


def test_two_headers_of_one_name(demo_server, scene):
    twice = "application/json\r\nAccept: image/png"
    assert status_of(same(demo_server.port, PREDICT, scene, Accept=twice)) == 200


def test_what_is_over_the_limit(demo_repository, serve, scene):
    server = serve(demo_repository, f"--http-max-input-size={len(scene) - 1}")
    assert status_of(same(server.port, PREDICT, scene)) == 413
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(scene), scene)
    assert status_of(same(server.port, PREDICT, chunk, Transfer_Encoding="chunked")) == 413


def test_a_restricted_api(demo_repository, serve, scene):
    server = serve(demo_repository, "--http-restricted-api=inference:key=secret")
    for path in (PREDICT, "/v1/models/nobody/predict", "/v1/models/digits/versions/x/predict"):
        assert status_of(same(server.port, path, scene)) == 403
        assert status_of(same(server.port, path, scene, Key="guess")) == 403
    assert status_of(same(server.port, PREDICT, scene, Key="secret")) == 200


def test_a_full_queue(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue=4", "--log-format=json")
    # Each takes the better part of a second to decode, and together they take all places.
    large = io.BytesIO()
    Image.new("RGB", (8000, 7500)).save(large, "PNG")
    files = [("f", large.getvalue())] * 4
    url = server.predict_url("digits")
    first = threading.Thread(target=httpx.post, args=(url,), kwargs={"files": files, "timeout": 99})
    first.start()
    metrics = f"http://127.0.0.1:{server.metrics_port}/metrics"
    waiting = re.compile(r"^nv_inference_pending_request_count\{.*\} [1-9]", re.MULTILINE)
    until = time.monotonic() + 60
    while not waiting.search(httpx.get(metrics).text):
        assert time.monotonic() < until
    answer = same(server.port, PREDICT, scene)
    assert status_of(answer) == 429
    assert [line for line in answer[1] if re.fullmatch(rb"retry-after: [1-9]\d*", line)]
    first.join()
    server.stop()
    refused = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [record for record in refused if record["logger"] == "fovea_server.refused"]


@pytest.mark.parametrize("headers", [{}, BY_FASTAPI])
def test_the_log_and_the_counters(demo_repository, serve, scene, headers):
    server = serve(demo_repository, "--log-format=json")
    asked = [
        ("digits", "?conf=0.5", 200),
        ("digits", "", 200),
        ("digits", "?conf=5", 422),
        ("nobody", "", 404),
    ]
    for model, query, status in asked:
        url = server.predict_url(model) + query
        answer = httpx.post(url, content=scene, headers=headers | {"X-Request-Id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
    assert len(httpx.post(url, content=scene, headers=headers).headers["x-request-id"]) == 24
    gone = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    gone += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(gone.encode() + b"\r\nx")
        time.sleep(0.2)
    time.sleep(0.2)
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    counted = re.findall(
        r'^fovea_request_duration_seconds_count\{model="(\w*)",status="(\w+)"\} (\S+)$',
        metrics,
        re.MULTILINE,
    )
    assert sorted(counted) == [
        ("", "404", "2"),
        ("digits", "200", "2"),
        ("digits", "422", "1"),
        ("digits", "499", "1"),
        ("digits", "OK", "0"),
    ]
    assert server.stop() == 0
    records = [json.loads(line) for line in server.log.read_text().splitlines()]
    told = [
        (record["method"], record["path"], record["model"], record["status"], record["id"])
        for record in records
        if record["logger"] == "fovea_server.access" and "predict" in record["path"]
    ]
    expected = [
        ("POST", f"/v1/models/{model}/predict{query}", model, status, "mine")
        for model, query, status in asked
    ]
    assert told[:4] == expected
    assert told[-1][:4] == ("POST", PREDICT, "digits", 499)


def test_a_request_behind_another(demo_server, scene):
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(scene)}\r\n"
    by_fastapi = (head + "Content-Encoding: identity\r\n\r\n").encode() + scene
    short = (head + "\r\n").encode() + scene
    with socket.create_connection(("127.0.0.1", demo_server.port), timeout=30) as connection:
        connection.sendall(short + by_fastapi + short)
        first = httpx.post(demo_server.url + PREDICT, content=scene).json()["images"]
        received = b""
        while received.count(b"timing_ms") < 3:
            received += connection.recv(65_536)
    bodies = re.findall(rb"\r\n\r\n(\{.*?\"total\":[^}]*\}\})", received)
    assert [json.loads(body)["images"] for body in bodies] == [first] * 3
    PredictAnswer.model_validate(json.loads(bodies[0]), strict=True)
