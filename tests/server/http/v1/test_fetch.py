"""Fetching by URL: real sockets, and every guard tried."""

import asyncio
import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from fovea_preprocess.errors import FetchRefused
from fovea_server.dataplane.fetch import Fetcher
from fovea_server.dataplane.reach import Reach, is_public

IMAGE = b"image" * 100
HERE = Reach(named=("127.0.0.0/8", "::1"))


REPLIES = {
    "/image": (200, IMAGE, {}),
    "/large": (200, b"x" * 20_000, {}),
    "/once": (302, b"", {"Location": "/image"}),
    "/loop": (302, b"", {"Location": "/loop"}),
    "/file": (302, b"", {"Location": "file:///etc/passwd"}),
    "/unreadable": (302, b"", {"Location": "http://localhost:port/"}),
    "/ill-formed": (302, b"", {"Location": "http://xn--a/"}),
    "/far-port": (302, b"", {"Location": "http://1.2.3.4:65536/x"}),
    "/nowhere": (302, b"", {}),
    "/unchanged": (304, b"", {}),
    "/compressed": (200, gzip.compress(IMAGE), {"Content-Encoding": "gzip"}),
    "/set-cookie": (200, b"", {"Set-Cookie": "session=secret; Path=/"}),
}
SLOW = {"/slow": 1, "/patience": 0.5}


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open, for a client that would reuse them

    def do_GET(self):
        if self.path in REPLIES:
            status, body, headers = REPLIES[self.path]
            self.reply(status, body, **headers)
        elif self.path in SLOW:
            time.sleep(SLOW[self.path])
            self.reply(200, IMAGE)
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 20_000)
            self.close_connection = True
        elif self.path == "/headers":
            self.reply(200, bytes(self.headers))
        elif self.path == "/client-port":
            self.reply(200, str(self.client_address[1]).encode())
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


def fetch_all(*addresses: str, reach: Reach = HERE, timeout_s: float = 60) -> list[bytes]:
    held: list[int] = []

    async def run() -> list[bytes]:
        fetcher = Fetcher(max_bytes=10_000, timeout_s=timeout_s, reach=reach)
        try:
            return [await fetcher.fetch(address, held.append) for address in addresses]
        finally:
            await fetcher.close()

    return asyncio.run(run())


def fetch(address: str, *, reach: Reach = HERE, timeout_s: float = 60) -> bytes:
    return fetch_all(address, reach=reach, timeout_s=timeout_s)[0]


def test_fetches_an_image_also_through_a_redirect(site):
    assert fetch(f"{site}/image") == IMAGE
    assert fetch(f"{site}/once") == IMAGE


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/large", "exceeds the limit of 9.8 KiB: .* raise --max-image-mb"),
        ("/loop", "redirects more than 3 times"),
        ("/file", "must begin with http"),
        ("/slow", "did not respond within 0.5 s"),
        ("/missing", "status 404"),
        ("/endless", "exceeds the limit of 9.8 KiB: .* raise --max-image-mb"),
        ("/nowhere", "status 302"),
        ("/unchanged", "status 304"),
        ("/unreadable", "could not be fetched"),
        ("/ill-formed", "could not be fetched"),
        ("/far-port", "port must be from 1 to 65535"),
        ("/compressed", "compressed"),
    ],
)
def test_guards(site, path, message):
    with pytest.raises(FetchRefused, match=message):
        fetch(site + path, timeout_s=0.5 if path == "/slow" else 60)


def test_a_request_leaves_nothing_to_the_next(site):
    _, headers = fetch_all(f"{site}/set-cookie", f"{site}/headers")
    assert b"cookie" not in headers.lower()
    first, second = fetch_all(f"{site}/client-port", f"{site}/client-port")
    assert first != second


def test_an_uncompressed_answer_is_asked_for(site):
    assert b"Accept-Encoding: identity" in fetch(f"{site}/headers")


def test_the_time_given_is_the_only_limit(site, monkeypatch):
    # As long as httpx allows unless told otherwise, which are 5 s.
    monkeypatch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, "read", 0.1)
    assert fetch_all(f"{site}/patience", timeout_s=20) == [IMAGE]


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "[::1]", "0.0.0.0", "2130706433"]
)
def test_private_addresses_are_refused_by_default(site, host):
    port = site.rpartition(":")[2]
    with pytest.raises(FetchRefused, match=r"is this machine|not known"):
        fetch(f"http://{host}:{port}/image", reach=Reach())


@pytest.mark.parametrize(
    "address",
    [
        "ftp://example.com/a",
        "file:///etc/passwd",
        "http://",
        "a.jpg",
        "http://u:p@x.com/",
        "",
        "http://xn--a/",
        "http://1.2.3.4:65536/x",
        "http://1.2.3.4:0/x",
        "http://[",
        "http://.localhost/",
        f"http://{'a' * 64}.com/",
        "http://localhost/\ud800",
    ],
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
        ("fec0::1", False),
        ("ff02::1", False),
        ("::10.0.0.1", False),
        ("::ffff:0:10.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::10.0.0.1", False),
        ("64:ff9b::93.184.215.14", True),
        ("64:ff9b:1::10.0.0.1", False),
        ("2002:a00:1::1", False),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", False),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
    ],
)
def test_whatis_public(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("address", "private", "named"),
    [
        ("10.0.0.1", True, "10.0.0.0/8"),
        ("100.64.0.1", True, "100.64.0.1"),
        ("fd12::1", True, "fd12::/16"),
        ("127.0.0.1", False, "127.0.0.1"),
        ("0.0.0.0", False, "0.0.0.0"),
        ("::1", False, "::1"),
        ("::ffff:127.0.0.1", False, "127.0.0.1"),
        ("64:ff9b::127.0.0.1", False, "127.0.0.0/8"),
        ("169.254.169.254", False, "169.254.0.0/16"),
        ("fe80::1%eth0", False, "fe80::/10"),
        ("fd00:ec2::254", False, "fd00:ec2::254"),
        ("100.100.100.200", False, "100.64.0.0/10"),
        ("2002:7f00:1::1", False, "2002:7f00:1::/48"),
        ("224.0.0.1", False, "224.0.0.1"),
    ],
)
def test_private_networks_have_no_addresses_of_this_machine(address, private, named):
    for reach, allowed in (
        (Reach(), False),
        (Reach(private=True), private),
        (Reach(named=(named,)), True),
        (Reach(named=("camera.lan",)), True),
        (Reach(private=True, named=("other.lan", "1.2.3.4")), private),
    ):
        if allowed:
            reach.check("Camera.lan", [address])
        else:
            with pytest.raises(FetchRefused, match="--url-allow-host"):
                reach.check("camera.lan", ["93.184.215.14", address])
