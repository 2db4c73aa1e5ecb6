"""A web server that fails, lies, drips and never ends: each model fails alone, and in time."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.server.stores.conftest import GO, content

from fovea_preprocess.errors import NotFound, ShuttingDown, Unavailable
from fovea_server.stores import fetch
from fovea_server.stores.address import Address
from fovea_server.stores.mirror import Mirror

pytestmark = pytest.mark.real

GOOD = {"good/1/model.onnx": b"good"}
Answer = Callable[[BaseHTTPRequestHandler], None]


class BrokenWeb(ThreadingHTTPServer):
    """Files with index pages; some paths are answered by a function instead."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = dict(GOOD)
        self.answers: dict[str, Answer] = {}
        self.delay = 0.0
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/models"

    def handle_error(self, *_: object) -> None:
        pass  # clients leave


class _Handler(BaseHTTPRequestHandler):
    server: BrokenWeb
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(self.server.delay)
        key = self.path.removeprefix("/models/")
        if key in self.server.answers:
            self.close_connection = True
            with suppress(OSError):
                self.server.answers[key](self)
        elif key in self.server.files:
            self.give(self.server.files[key])
        elif key == "" or key.endswith("/"):
            below = (f[len(key) :] for f in self.server.files if f.startswith(key))
            links = {path if "/" not in path else path.split("/")[0] + "/" for path in below}
            self.give("".join(f'<a href="{link}">x</a>' for link in links).encode(), "text/html")
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def give(self, body: bytes, kind: str = "application/octet-stream") -> None:
        self.begin(len(body), kind)
        if self.command == "GET":
            self.wfile.write(body)

    def begin(self, size: int, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", f'"{size}"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def fails(status: int, *, head: bool) -> Answer:
    def answer(request: _Handler) -> None:
        if request.command == "HEAD" and not head:
            request.begin(100)
        else:
            request.send_error(status)

    return answer


def breaks_off(request: _Handler) -> None:
    request.begin(1000)
    if request.command == "GET":
        request.wfile.write(b"x" * 10)


def drips(request: _Handler) -> None:
    request.begin(1000)
    while request.command == "GET" and not request.server.over.wait(0.05):
        request.wfile.write(b"x")
        request.wfile.flush()


@pytest.fixture
def web():
    server = BrokenWeb()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def mirror(web, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_WINDOW_S", 0.5)
    return Mirror(Address.parse(web.url), tmp_path / "cache", 1 << 30)


BROKEN = {
    "500 when it is listed": fails(500, head=True),
    "500 when it is read": fails(500, head=False),
    "403": fails(403, head=False),
    "gone": fails(404, head=True),
    "broken off": breaks_off,
    "a byte now and then": drips,
}


@pytest.mark.parametrize("how", BROKEN)
def test_one_bad_file_keeps_its_model_as_it_was_and_no_other(web, mirror, how, caplog):
    web.files["bad/1/model.onnx"] = b"bad"
    web.answers["bad/1/model.onnx"] = BROKEN[how]
    mirror.pull(GO)
    assert content(mirror) == GOOD
    assert "bad/1/model.onnx" in mirror.refused["bad"]
    assert "model bad of http://127.0.0.1" in caplog.text
    mirror.pull(GO)
    assert caplog.text.count("model bad of") == 1, "once is enough"

    del web.answers["bad/1/model.onnx"]
    mirror.pull(GO)
    served = GOOD | {"bad/1/model.onnx": b"bad"}
    assert content(mirror) == served
    assert not mirror.refused

    web.files["new/1/model.onnx"] = b"new"
    web.answers["bad/1/model.onnx"] = BROKEN[how]
    mirror.pull(GO)
    assert content(mirror) == served | {"new/1/model.onnx": b"new"}


def test_a_folder_that_cannot_be_listed_is_not_one_that_has_left(web, mirror):
    web.files["bad/1/model.onnx"] = b"before"
    mirror.pull(GO)
    web.answers["bad/1/"] = fails(500, head=True)
    mirror.pull(GO)
    assert content(mirror) == GOOD | {"bad/1/model.onnx": b"before"}
    assert "bad/1/ cannot be read" in mirror.refused["bad"]


def test_a_dead_link_of_an_index_is_none(web, mirror):
    web.files["gone/x"] = b""
    web.answers["gone/"] = fails(404, head=True)
    mirror.pull(GO)
    assert content(mirror) == GOOD
    assert not mirror.refused


def test_an_index_without_end_is_left(web, mirror):
    def endless(request: _Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.end_headers()
        while not request.server.over.is_set():
            request.wfile.write(b'<a href="x">' * 1000)

    web.answers["bad/"] = endless
    web.files["bad/1/model.onnx"] = b""
    mirror.pull(GO)
    assert content(mirror) == GOOD
    assert "4 MiB" in mirror.refused["bad"]
    web.answers[""] = endless
    with pytest.raises(Unavailable, match="4 MiB"):
        mirror.pull(GO)


def test_folders_without_end_are_left(web, mirror):
    def deeper(request: _Handler) -> None:
        request.give(b"".join(b'<a href="%d/">' % n for n in range(500)), "text/html")

    web.files["deep/x"] = b""
    for key in ("deep/", *(f"deep/{n}/" for n in range(500))):
        web.answers[key] = deeper
    with pytest.raises(Unavailable):
        mirror.pull(GO)


def test_a_card_that_no_memory_holds_is_not_pulled(web, mirror):
    web.files["bad/1/model.onnx"] = b"bad"
    web.files["bad/1/card.json"] = b""
    web.answers["bad/1/card.json"] = lambda request: request.begin(600_000_000)
    mirror.pull(GO)
    assert content(mirror) == GOOD
    assert mirror.refused["bad"] == "bad/1/card.json has 572.2 MiB, over the limit of 16 MiB"


def test_many_files_of_a_distant_server_are_listed_at_once(web, mirror):
    web.files |= {f"m{n}/1/model.onnx": b"x" for n in range(150)}
    web.delay = 0.05
    began = time.monotonic()
    mirror.check()
    # One after the other, 450 pages and files would take 22 s.
    assert time.monotonic() - began < 12


def test_a_store_that_gives_no_file_at_all_is_away(web, mirror):
    web.files = {f"m{n}/1/model.onnx": b"x" for n in range(30)}
    web.answers = dict.fromkeys(web.files, fails(500, head=False))
    with pytest.raises(Unavailable, match="500"):
        mirror.pull(GO)


def test_the_end_of_the_server_does_not_wait_for_a_drip(web, mirror, monkeypatch):
    monkeypatch.setattr(fetch, "_WINDOW_S", 60.0)
    web.files["bad/1/model.onnx"] = b""
    web.answers["bad/1/model.onnx"] = drips
    stop, ended = threading.Event(), threading.Event()

    def pull() -> None:
        with pytest.raises(ShuttingDown):
            mirror.pull(stop)
        ended.set()

    thread = threading.Thread(target=pull)
    thread.start()
    while "good" not in {p.name for p in mirror.root.parent.glob("files/*")} and not any(
        mirror.root.parent.glob("files/*.part")
    ):
        time.sleep(0.01)
    stop.set()
    assert ended.wait(60)
    thread.join()


def test_a_root_that_is_not_there_and_one_that_is_not_for_all(web, mirror):
    web.files = {}
    web.answers[""] = fails(404, head=True)
    with pytest.raises(NotFound):
        mirror.check()
    web.answers[""] = fails(403, head=True)
    with pytest.raises(Unavailable, match="403"):
        mirror.check()


def test_links_that_are_none_and_pages_that_are_no_html_stop_nothing(web, mirror):
    web.files["bad/1/model.onnx"] = b""
    for page in (
        b'<a href="http://[">x</a>',
        b'<a href="a\x01b">x</a>',
        b'<a href="' + b"x" * 70_000 + b'">x</a>',
        b"<![x[",
    ):
        web.answers["bad/"] = lambda request, page=page: request.give(page, "text/html")
        mirror.pull(GO)
        assert content(mirror) == GOOD, page


def test_a_page_or_a_head_that_drips_keeps_its_model_out_alone(web, mirror, monkeypatch):
    monkeypatch.setattr("fovea_server.stores.web._PATIENCE_S", 0.5)

    def head_drips(request: _Handler) -> None:
        while not request.server.over.wait(0.05):
            request.wfile.write(b"H")
            request.wfile.flush()

    web.files["bad/1/model.onnx"] = b""
    for key in ("bad/", "bad/1/model.onnx"):
        web.answers = {key: head_drips}
        mirror.pull(GO)
        assert content(mirror) == GOOD
        assert "did not come within" in mirror.refused["bad"]


def test_one_model_of_many_broken_files_is_one_model(web, mirror):
    broken = {f"bad/1/{n}.bin": b"x" for n in range(12)}
    web.files = broken | {"good/1/model.onnx": b"good", "bad/1/model.onnx": b""}
    web.answers = dict.fromkeys(broken, fails(500, head=False))
    mirror.pull(GO)
    assert content(mirror) == GOOD
