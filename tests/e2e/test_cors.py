"""Answers carry what lets pages of other origins read them, on every path to an answer."""

import socket
import subprocess
import sys

import httpx
import pytest
from tests.serving import start_server

pytestmark = pytest.mark.slow

APP = "https://app.example.com"
PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
EXPOSED = "Inference-Header-Content-Length, Retry-After, X-Request-Id"
GONE = "/v1/models/nobody/predict"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
SECRET = {"key": "secret"}

# Of each protocol and each path through it: method, path, further headers, body, status.
ASKED = {
    "an image": ("POST", PREDICT, SECRET, "image", 200),
    "an image drawn": ("POST", PREDICT, {**SECRET, "Accept": "image/png"}, "image", 200),
    "no image": ("POST", PREDICT, SECRET, b"text", 400),
    "no form": ("POST", PREDICT, SECRET | FORM, b"text", 400),
    "no secret": ("POST", PREDICT, {}, "image", 403),
    "no secret, a form": ("POST", PREDICT, FORM, b"text", 403),
    "no model": ("POST", GONE, SECRET, "image", 404),
    "no route": ("GET", "/nowhere", {}, b"", 404),
    "another method": ("GET", PREDICT, {}, b"", 405),
    "too much": ("POST", PREDICT, SECRET, b"x" * 200_000, 413),
    "too much of a form": ("POST", PREDICT, SECRET | FORM, b"x" * 200_000, 413),
    "an option": ("POST", PREDICT + "?conf=7", SECRET, "image", 422),
    "a model that is not ready": ("GET", "/v1/models/broken/ready", {}, b"", 503),
    "the page's client": ("GET", "/page/fovea.js", {}, b"", 200),
    "the document": ("GET", "/openapi.json", {}, b"", 200),
    "v2": ("GET", "/v2", {}, b"", 200),
    "v2, no tensors": ("POST", INFER, SECRET, b"{}", 500),
    "v2, no secret": ("POST", INFER, {}, b"{}", 403),
    "v2, no route": ("GET", "/v2/nowhere", {}, b"", 404),
    "v2, another method": ("GET", INFER, SECRET, b"", 405),
    "v2, too much": ("POST", INFER, SECRET, b"x" * 200_000, 400),
}


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    """The demo model, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("cors")
    (folder / "digits").symlink_to(demo_repository / "digits")
    (folder / "broken" / "1").mkdir(parents=True)
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    return folder


@pytest.fixture(scope="module")
def servers(repository, tmp_path_factory):
    """One that allows two origins, and one that allows every one."""
    flags = ["--http-restricted-api=inference:key=secret", "--http-max-input-size=100000"]
    flags += ["--strict-readiness=false"]
    named = [f"--cors-origin={APP}", "--cors-origin=http://localhost:5173"]
    started = [
        start_server(repository, tmp_path_factory.mktemp("log"), [*flags, *origins])
        for origins in (named, ["--cors-origin=*"])
    ]
    yield started
    for server in started:
        assert server.stop() == 0


@pytest.fixture
def ask(scene):
    def asked(server, asked, origin, foreign=False):
        method, path, headers, body, status = asked
        if foreign and method == "POST":
            status = 403
        content = scene if body == "image" else body
        headers = headers | ({} if origin is None else {"Origin": origin})
        answer = httpx.request(method, server.url + path, headers=headers, content=content)
        assert answer.status_code == status
        return answer.headers

    return asked


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_answers_may_be_read_where_the_operator_says(servers, ask, asked):
    named, everyone = servers
    for origin in (APP, "http://localhost:5173"):
        headers = ask(named, asked, origin)
        assert headers.get_list("access-control-allow-origin") == [origin]
        assert headers["access-control-expose-headers"] == EXPOSED
        assert "Origin" in headers["vary"]
    headers = ask(everyone, asked, "null")
    assert headers.get_list("access-control-allow-origin") == ["*"]
    assert headers["access-control-expose-headers"] == EXPOSED
    for origin in ("https://evil.example.com", f"{APP}.evil.com", "null", None):
        headers = ask(named, asked, origin, foreign=origin is not None)
        assert "access-control-allow-origin" not in headers
        # A cache must not give this answer to a page that may read it.
        assert origin is None or "Origin" in headers["vary"]


@pytest.mark.parametrize("path", [PREDICT, GONE, INFER, "/v1/models", "/v2", "/v2/nowhere"])
def test_a_preflight_needs_no_secret(servers, path):
    asked = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "key,x-request-timeout-ms",
    }
    for server, origin in zip(servers, (APP, "*"), strict=True):
        answer = httpx.options(server.url + path, headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-headers"] == "key,x-request-timeout-ms"
        assert "POST" in answer.headers["access-control-allow-methods"]
    refused = httpx.options(servers[0].url + path, headers=asked | {"Origin": "https://evil.com"})
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers


def test_a_busy_server_says_when_to_come_back(serve, demo_repository, scene):
    server = serve(demo_repository, f"--cors-origin={APP}", "--max-held-mb=0.01")
    image, form = {"content": scene}, {"files": {"file": scene}}
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        # A body that is under way takes most of what all may hold.
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
        slow.sendall(head.encode() + b"x" * 10_000)
        while httpx.post(server.predict_url("digits"), **image).status_code == 200:
            pass
        for path, body in ((PREDICT, image), (PREDICT, form), (INFER, image)):
            answer = httpx.post(server.url + path, headers={"Origin": APP}, **body)
            assert answer.status_code == (503 if path == INFER else 429)
            assert answer.headers["access-control-allow-origin"] == APP
            assert "Retry-After" in answer.headers["access-control-expose-headers"]
            assert path == INFER or int(answer.headers["retry-after"]) >= 1


def test_it_is_off_by_default(demo_server, ask):
    for asked in (ASKED["v2"], ASKED["no route"], ASKED["no image"]):
        headers = ask(demo_server, asked, APP, foreign=True)
        assert not any("access-control" in name for name in headers)
    asked = {"Origin": APP, "Access-Control-Request-Method": "POST"}
    answer = httpx.options(demo_server.url + PREDICT, headers=asked)
    assert answer.status_code == 405


def test_every_page_is_warned_of(servers):
    named, everyone = servers
    warning = "--cors-origin is *: pages of every site may use this server"
    assert [warning in server.log.read_text() for server in (named, everyone)] == [False, True]


@pytest.mark.parametrize(
    "origin",
    ["app.example.com", f"{APP}/", "https://App.example.com", f"{APP}:443", "null", "", "http://"],
)
def test_what_no_browser_sends_is_refused(origin, tmp_path):
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", str(tmp_path)]
    done = subprocess.run(
        [*command, f"--cors-origin={origin}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert f"--cors-origin: browsers send no origin '{origin}'" in done.stderr
    assert "http://localhost:5173" in done.stderr
