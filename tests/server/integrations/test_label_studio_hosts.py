"""The token of a Label Studio is for its own host, however an address of a file is written."""

import itertools

import pytest

from fovea_preprocess.errors import FetchRefused, InvalidImage
from fovea_server.dataplane.fetch import _parse_url
from fovea_server.http.v1.body import Url
from fovea_server.integrations.label_studio.hosts import Hosts
from fovea_server.settings import Settings

STUDIO = "http://studio.lan:8080"
ITS = ("studio.lan:8080", "STUDIO.lan:8080")
THEIRS = (
    *("evil.example", "evil.example:8080", "studio.lan", "studio.lan:80", "studio.lan:80800"),
    *(
        "studio.lan.evil.example:8080",
        "studio.lan:8080.evil.example",
        "studio.lan:8080@evil.example",
    ),
    *("studio.lan:8080%40evil.example", "studio.lan%3A8080", "evil.example#@studio.lan:8080"),
    *("evil.example?@studio.lan:8080", "evil.example\\@studio.lan:8080", "user@studio.lan:8080"),
    *("studio.lan:8080\\@evil.example", "studio.lan:8080;@evil.example", "studio\uff0elan:8080"),
    *("studio.lan.:8080", "[::1]:8080", "studio.lan:08080", "studio.lan:", ":8080", ""),
)
BEFORE = (
    "",
    "/",
    "//",
    "///",
    "\t",
    "/\t/",
    " ",
    "\n//",
    "\\\\",
    "/\\",
    "\x00",
    "//@",
    "?",
    "#",
    "./",
)
SCHEMES = (
    "",
    "http:",
    "http://",
    "HTTP://",
    "https://",
    "http:/",
    "http:///",
    "ftp://",
    "h\tttp://",
)
PATHS = ("", "/", "/data/x.jpg", "\\@evil.example/x", "?u=http://evil.example", "#@evil.example")


@pytest.fixture
def hosts() -> Hosts:
    return Hosts(Settings(label_studio_url=STUDIO, label_studio_token="secret"))


def test_an_address_that_cannot_be_joined_is_an_error(hosts):
    assert isinstance(hosts.source("1", 7, "//\t//[evil.example"), InvalidImage)


def test_no_address_takes_the_token_elsewhere(hosts):
    """The fetcher connects to where its own parser finds the host."""
    named, others = 0, 0
    for parts in itertools.product(BEFORE, SCHEMES, (*ITS, *THEIRS), PATHS):
        address = "".join(parts)
        source = hosts.source("1", 7, address)
        if not isinstance(source, Url):
            assert isinstance(source, InvalidImage)
            continue
        if source.authorization is None:
            others += 1
            continue
        named += 1
        try:
            url = _parse_url(source.address)
        except FetchRefused:
            continue
        assert (url.scheme, url.host, url.port) == ("http", "studio.lan", 8080), address
        assert not url.userinfo
    assert min(named, others) > 1000


@pytest.mark.parametrize("address", ["/data/x.jpg", "data/x.jpg", f"{STUDIO}/x", "s3://b/x"])
def test_its_own_files_are_asked_for_with_the_token(hosts, address):
    source = hosts.source("1", 7, address)
    assert isinstance(source, Url)
    assert source.address.startswith(f"{STUDIO}/")
    assert source.authorization == "Token secret"
