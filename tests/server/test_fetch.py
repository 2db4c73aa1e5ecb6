"""Fetching by URL: real sockets, and every guard tried."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fovea_preprocess.errors import FetchRefused
from fovea_server.fetch import Fetcher, _is_public

PICTURE = b"picture" * 100


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/picture":
            self.reply(200, PICTURE)
        elif self.path == "/large":
            self.reply(200, b"x" * 20_000)
        elif self.path == "/once":
            self.reply(302, b"", Location="/picture")
        elif self.path == "/loop":
            self.reply(302, b"", Location="/loop")
        elif self.path == "/file":
            self.reply(302, b"", Location="file:///etc/passwd")
        elif self.path == "/slow":
            time.sleep(1)
            self.reply(200, b"")
        else:
            self.reply(404, b"")

    def reply(self, status, body, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(address: str, *, allow_private: bool = True) -> bytes:
    async def run() -> bytes:
        fetcher = Fetcher(max_bytes=10_000, timeout_s=0.5, allow_private=allow_private)
        try:
            return await fetcher.fetch(address)
        finally:
            await fetcher.close()

    return asyncio.run(run())


def test_fetches_a_picture_also_through_a_redirect(site):
    assert fetch(f"{site}/picture") == PICTURE
    assert fetch(f"{site}/once") == PICTURE


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/large", "over 0.01 MB"),
        ("/loop", "redirects more than 3 times"),
        ("/file", "must begin with http"),
        ("/slow", "did not answer within 0.5 s"),
        ("/missing", "status 404"),
    ],
)
def test_guards(site, path, message):
    with pytest.raises(FetchRefused, match=message):
        fetch(site + path)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "[::1]", "0.0.0.0", "2130706433"]
)
def test_private_addresses_are_refused_by_default(site, host):
    port = site.rpartition(":")[2]
    with pytest.raises(FetchRefused, match=r"not a public address|not known"):
        fetch(f"http://{host}:{port}/picture", allow_private=False)


@pytest.mark.parametrize(
    "address",
    ["ftp://example.com/a", "file:///etc/passwd", "http://", "a.jpg", "http://u:p@x.com/", ""],
)
def test_other_urls_are_refused(address):
    with pytest.raises(FetchRefused):
        fetch(address)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("fe80::1%eth0", False),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
    ],
)
def test_what_is_public(address, public):
    assert _is_public(address) is public
