"""Clients that ask for HTTP/2 with their first request: Java's own, and curl."""

import subprocess
from pathlib import Path

import httpx
import pytest
from tests.contract.wire import LAST, found, infer_body
from tests.system import program

pytestmark = pytest.mark.real

PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
JAVA_CLIENT = Path(__file__).with_name("Client.java")

# What Java 17 sends, with its order of headers; the body follows in a segment of its own.
JAVA_HEAD = (
    "POST {path} HTTP/1.1\r\n"
    "Connection: Upgrade, HTTP2-Settings\r\n"
    "Content-Length: {size}\r\n"
    "Host: 127.0.0.1:8000\r\n"
    "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
    "Upgrade: h2c\r\n"
    "User-Agent: Java-http-client/17.0.15\r\n"
    "{line}\r\n\r\n"
)


@pytest.fixture(params=[PREDICT, INFER])
def upload(request, scene) -> tuple[str, bytes, tuple[str, str]]:
    """A path, a body, and the header that says what it is."""
    if request.param == PREDICT:
        return PREDICT, scene, ("Content-Type", "image/jpeg")
    body, json_size = infer_body(scene)
    return INFER, body, ("Inference-Header-Content-Length", json_size)


@pytest.fixture
def expected(plain_server, upload) -> tuple[int, object]:
    """What a client gets that does not ask."""
    path, body, header = upload
    answer = httpx.post(plain_server.url + path, content=body, headers=dict([header]))
    assert answer.status_code == 200
    return found((200, answer.content))


def test_what_java_sends(door, upload, expected):
    path, body, header = upload
    line = ": ".join(header)
    sent = JAVA_HEAD.format(path=path, size=len(body), line=line).encode()
    for segments in ((sent, body, sent, body), (sent + body + sent + body,)):
        got = door.converse(*segments, LAST)
        assert [found(answer) for answer in got[:2]] == [expected] * 2
        assert len(got) == 3


def test_java(plain_server, upload, expected, tmp_path):
    java = program("java", package="default-jdk-headless")
    path, body, header = upload
    file = tmp_path / "body"
    file.write_bytes(body)
    command = [java, str(JAVA_CLIENT), plain_server.url + path, str(file), *header]
    ran = subprocess.run(command, capture_output=True, timeout=120, check=True)
    answers = [line.partition(b" ") for line in ran.stdout.splitlines()]
    assert [found((int(status), text)) for status, _, text in answers] == [expected] * 2


@pytest.mark.parametrize("more", [[], ["--header", "Transfer-Encoding: chunked"]], ids=len)
def test_curl(plain_server, upload, expected, tmp_path, more):
    curl = program("curl", package="curl")
    path, body, header = upload
    file = tmp_path / "body"
    file.write_bytes(body)
    command = [curl, "--http2", "--silent", "--show-error", "--data-binary", f"@{file}"]
    command += ["--header", ": ".join(header), *more, plain_server.url + path]
    ran = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert found((200, ran.stdout)) == expected
