"""Addresses of cameras: what is read, what is shown of them, and what is refused."""

import re

import pytest

from fovea_preprocess.errors import FetchRefused, InvalidOption
from fovea_server.dataplane.reach import Reach
from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.frames.address import SourceAddress, check_address


@pytest.mark.parametrize(
    ("text", "shown", "host"),
    [
        ("rtsp://c/a@b", "rtsp://c/a@b", "c"),
        ("rtsp://c/?user=a@b", "rtsp://c/?...", "c"),
        ("rtsp://a:b:c@d@e/f", "rtsp://e/f", "e"),
        ("rtsp://camera/user=a_password=s3_cret_channel=1.sdp", None, "camera"),
        ("rtsp://camera/a;PWD=s3_cret&b", None, "camera"),
        ("rtsp://camera/token=s3_cret/1", None, "camera"),
    ],
)
def test_addresses_are_shown_without_secrets(text, shown, host):
    address = SourceAddress.parse(text)
    assert (address.text, address.url.hostname) == (text, host)
    assert address.shown == (shown or text.replace("s3_cret", "..."))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("rtsp://admin:p@ss#1@127.0.0.1:9/stream", "write # as %23 and @ as %40 in the password"),
        ("rtsp://admin:pa#ss@127.0.0.1/x", "write # as %23 in"),
        ("RTSP://admin:pa/ss@127.0.0.1/x", "write / as %2F in"),
        ("http://admin:pa?ss@127.0.0.1", "write [?] as %3F in"),
        ("rtsp://admin:1/ss@127.0.0.1/x", "write / as %2F in"),
        ("rtsps://ad/min:ss@[::1]:8/x", "write / as %2F in"),
        ("rtsp://admin:ss#@127.0.0.1/x", "write # as %23 in"),
    ],
)
def test_no_piece_of_a_password_is_taken_for_a_host(text, advice):
    with pytest.raises(InvalidOption, match=advice) as raised:
        SourceAddress.parse(text)
    assert not {"admin", "ss", "min"} & set(re.findall(r"\w+", str(raised.value)))
    for key, scheme in (("webhook", "https"), ("mqtt", "mqtt")):
        with pytest.raises(InvalidOption, match=advice):
            EventConfig.parse({key: text.replace(text.partition(":")[0], scheme)})


BREAKS = ["\r\n", "\n", "\t", " ", "\x00", "\x7f", "%0d%0A", "%00"]


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://a/b", "rtsp:///x", "rtsp://a:99999/x", "gopher://x"),
        # A line break would end a line of what is sent to the camera.
        *(f"rtsp://10.0.0.1/a{each}x" for each in BREAKS),
        *(f"rtsp://user{each}Host: other@10.0.0.1/bx" for each in BREAKS),
        *(f"http://10.0.0.1/a?b={each}x" for each in BREAKS),
    ],
)
def test_addresses_of_no_camera(text):
    with pytest.raises(InvalidOption):
        SourceAddress.parse(text)


@pytest.mark.parametrize("address", ["rtsp://localhost/x", "http://[::1]/x", "https://10.0.0.1/x"])
def test_addresses_that_are_not_public_are_refused(address):
    with pytest.raises(FetchRefused, match="--url-allow-host"):
        check_address(SourceAddress.parse(address), Reach())


def test_each_redirect_is_checked(mjpeg, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fovea_server.dataplane.reach.is_public", lambda each: not asked.append(each)
    )
    target = check_address(SourceAddress.parse(f"http://{mjpeg}/away"), Reach())
    assert target.text == f"http://{mjpeg}/video"
    assert len(asked) == 2
    for path in ("loop", "ftp"):
        with pytest.raises(FetchRefused):
            check_address(SourceAddress.parse(f"http://{mjpeg}/{path}"), Reach())
