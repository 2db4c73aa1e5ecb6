"""The sender, over real sockets. The server end is a double: it answers from a script.

What the real server says to it is in tests/e2e.
"""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from tests.certificates import make_pair

from fovea_client import (
    Client,
    ConnectionFailed,
    FoveaClientError,
    QueueFull,
    ServerError,
    UnexpectedAnswer,
    server_address,
)

ANSWER = {
    "model": "digits",
    "version": "1",
    "task": "detect",
    "images": [
        {
            "width": 320,
            "height": 200,
            "orientation": 1,
            "detections": [
                {
                    "box": {"x1": 1.0, "y1": 2.0, "x2": 30.5, "y2": 40.0},
                    "score": 0.9,
                    "class_id": 7,
                    "class_name": "seven",
                }
            ],
        }
    ],
    "timing_ms": dict.fromkeys(
        ("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0
    ),
}
BUSY = {"error": {"code": "queue_full", "message": "256 images are waiting"}}

Reply = tuple[int, dict[str, str], bytes]


class ScriptedServer(ThreadingHTTPServer):
    """Answers from `replies` in turn, the last one again and again; keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = [(200, {}, json.dumps(ANSWER).encode())]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.delay_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        time.sleep(self.server.delay_s)
        replies = self.server.replies
        status, answer_headers, content = replies.pop(0) if len(replies) > 1 else replies[0]
        self.send_response(status)
        for name, value in answer_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST  # noqa: N815  the base class looks for these names

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


def test_predict_sends_the_image_and_types_the_answer(server: ScriptedServer) -> None:
    with Client(server.url) as client:
        prediction = client.predict("digits", b"image", conf=0.5, version=1)
    assert [found.class_name for found in prediction.detections] == ["seven"]
    [(method, path, headers, body)] = server.requests
    assert (method, path) == ("POST", "/v1/models/digits/versions/1/predict?conf=0.5")
    assert headers["accept"] == "application/json"
    assert body == b"image"


def test_an_address_may_have_a_path_in_front(server: ScriptedServer) -> None:
    with Client(server.url + "/vision/") as client:
        client.predict("a/b", b"image")
    assert server.requests[0][1] == "/vision/v1/models/a%2Fb/predict"


def test_predict_many_is_one_request(server: ScriptedServer) -> None:
    with Client(server.url) as client:
        client.predict_many("digits", (b for b in (b"one", b"two")))
    [(_, _, headers, body)] = server.requests
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert 0 < body.index(b"one") < body.index(b"two")


def test_annotate_asks_for_an_image(server: ScriptedServer) -> None:
    server.replies = [(200, {"Content-Type": "image/png"}, b"\x89PNG")]
    with Client(server.url) as client:
        assert client.annotate("digits", b"image", format="image/png", iou=0.4) == b"\x89PNG"
    assert server.requests[0][2]["accept"] == "image/png"


def test_ready(server: ScriptedServer) -> None:
    server.replies = [(200, {}, b""), (400, {}, b"")]
    with Client(server.url) as client:
        assert client.ready()
        assert not client.ready("digits")
    assert [path for _, path, _, _ in server.requests] == [
        "/v2/health/ready",
        "/v2/models/digits/ready",
    ]


def test_an_unknown_option_is_the_callers_mistake(server: ScriptedServer) -> None:
    with Client(server.url) as client, pytest.raises(TypeError, match="confidence"):
        client.predict("digits", b"image", confidence=0.5)  # type: ignore[call-arg]
    assert server.requests == []


def test_a_full_queue_is_waited_for_when_retries_are_wanted(server: ScriptedServer) -> None:
    busy: Reply = (429, {"Retry-After": "0.2"}, json.dumps(BUSY).encode())
    server.replies = [busy, busy, *server.replies]
    started = time.monotonic()
    with Client(server.url, retries=2) as client:
        assert client.predict("digits", b"image").model == "digits"
    assert time.monotonic() - started >= 0.4
    assert [body for _, _, _, body in server.requests] == [b"image"] * 3


def test_retries_end(server: ScriptedServer) -> None:
    server.replies = [(429, {"Retry-After": "0"}, json.dumps(BUSY).encode())]
    with Client(server.url, retries=1) as client, pytest.raises(QueueFull, match="256 images"):
        client.predict("digits", b"image")
    assert len(server.requests) == 2


def test_nothing_is_retried_unless_asked(server: ScriptedServer) -> None:
    server.replies = [(503, {"Retry-After": "0"}, b"down")]
    with Client(server.url) as client, pytest.raises(ServerError):
        client.predict("digits", b"image")
    assert len(server.requests) == 1


def test_a_wait_beyond_the_timeout_is_not_begun(server: ScriptedServer) -> None:
    server.replies = [(429, {"Retry-After": "3600"}, json.dumps(BUSY).encode())]
    with Client(server.url, timeout=5, retries=3) as client, pytest.raises(QueueFull):
        client.predict("digits", b"image")
    assert len(server.requests) == 1


def test_a_slow_answer_is_a_failed_connection(server: ScriptedServer) -> None:
    server.delay_s = 0.5
    client = Client(server.url, timeout=0.1)
    with client, pytest.raises(ConnectionFailed, match=r"within 0\.1 s"):
        client.predict("digits", b"image")


def test_a_certificate_that_is_not_trusted_is_told(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = make_pair(tmp_path, "camera.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with Client(url) as client, pytest.raises(ConnectionFailed) as caught:
        client.predict("digits", b"image")
    assert str(caught.value).startswith(f"the certificate of {url} is not trusted (")
    assert "set SSL_CERT_FILE to the file" in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Client(url) as client:
        assert len(client.predict("digits", b"image").detections) == 1


def test_nobody_there_is_a_failed_connection() -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client(url, retries=1) as client, pytest.raises(ConnectionFailed, match=url):
            client.ready()


def test_another_server_is_noticed(server: ScriptedServer) -> None:
    server.replies = [(200, {"Content-Type": "text/html"}, b"<title>Router login</title>")]
    with Client(server.url) as client:
        with pytest.raises(UnexpectedAnswer, match="Fovea server"):
            client.predict("digits", b"image")
        with pytest.raises(UnexpectedAnswer, match="text/html"):
            client.annotate("digits", b"image")


def test_every_error_has_the_one_base() -> None:
    assert issubclass(QueueFull, ServerError)
    for kind in (ServerError, ConnectionFailed, UnexpectedAnswer):
        assert issubclass(kind, FoveaClientError)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "", "http://h:port", "h:port"])
def test_a_bad_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Client(url)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("localhost", "http://localhost"),
        ("https://host/fovea/", "https://host/fovea"),
    ],
)
def test_an_address_without_a_scheme_is_of_http(typed: str, meant: str) -> None:
    assert server_address(typed) == meant


def test_the_port_of_grpc_is_named_and_not_tried_again() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            Client(f"http://127.0.0.1:{port}", retries=3) as client,
            pytest.raises(UnexpectedAnswer, match="is it the port for gRPC"),
        ):
            client.models()
    finally:
        server.stop(None).wait()
