"""Addresses of cameras and videos: their kinds, and their texts without secrets."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from fovea_preprocess.errors import FetchRefused, InvalidOption
from fovea_server.dataplane.reach import OURS, Reach

Kind = Literal["rtsp", "http", "file", "device"]

MAX_REDIRECTS = 3
_SCHEMES: dict[str, Kind] = {"rtsp": "rtsp", "rtsps": "rtsp", "http": "http", "https": "http"}
RTSP_PORTS = {"rtsp": 554, "rtsps": 322}
_DEVICE = re.compile(r"/dev/video[0-9]+|[0-9]{1,3}")
# Pattern of secrets in a path, where some cameras expect the password:
# /user=admin_password=SECRET_channel=1.sdp
_SECRETS = re.compile(
    r"((?:password|passwd|pwd|pass|token|key|secret|auth)=)[^&;/]*?(?=$|[&;/]|_[a-z]+=)",
    re.IGNORECASE,
)
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """The address of a camera or a video.

    Attributes:
        kind: kind of the source.
        text: address with user and password. The server opens it, but never shows it.
        name: host name, if `text` contains the host's checked IP address instead; otherwise "".
    """

    kind: Kind
    text: str = field(repr=False)
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> SourceAddress:
        """Parse an address.

        Raises:
            InvalidOption: the scheme is not supported, or the address has no host.
        """
        if _DEVICE.fullmatch(text):
            return cls("device", f"/dev/video{text}" if text.isdigit() else text)
        scheme, apart, rest = text.partition("://")
        if not apart:
            return cls("file", text.removeprefix("file:"))
        # Schemes may be written in any case, but FFmpeg accepts only lower case.
        scheme = scheme.lower()
        if scheme == "file" and rest.startswith("/"):
            return cls("file", unquote(rest))
        kind = _SCHEMES.get(scheme)
        if kind is None:
            raise InvalidOption(
                f"sources of {scheme[:20]}:// are not supported: give a file, a device such as "
                "/dev/video0, or a URL that begins with "
                f"{', '.join(f'{each}://' for each in _SCHEMES)}"
            )
        check_login(text)
        try:
            url = urlsplit(f"{scheme}://{rest}")
            if url.hostname and url.port != 0:
                return cls(kind, url.geturl())
        except ValueError:
            pass
        raise InvalidOption(
            f"the {scheme}:// URL has no host, or an invalid port: write {scheme}://HOST:PORT/PATH"
        )

    @property
    def live(self) -> bool:
        """Return whether the source is a camera.

        Cameras do not wait for a slow reader, and can be reconnected.
        """
        return self.kind != "file"

    @property
    def url(self) -> SplitResult:
        """Return the parsed URL of an address that has a host."""
        return urlsplit(self.text)

    @property
    def shown(self) -> str:
        """Return the address without user, password and query, for people and for logs."""
        if self.kind in ("file", "device"):
            return self.text
        url = self.url
        host = url.netloc.rpartition("@")[2]
        path = _SECRETS.sub(r"\1...", url.path)
        return f"{url.scheme}://{host}{path}{'?...' if url.query else ''}"

    def at(self, host: str) -> SourceAddress:
        """Return the address with a checked IP address instead of its host name."""
        url = self.url
        user, apart, _ = url.netloc.rpartition("@")
        number = f"[{host}]" if ":" in host else host
        port = f":{url.port}" if url.port else ""
        pinned = url._replace(netloc=f"{user}{apart}{number}{port}").geturl()
        return SourceAddress(self.kind, pinned, url.netloc.rpartition("@")[2])


def check_login(text: str) -> None:
    """Raise an error if a part of the password would be parsed as the host, port or path.

    Spaces and control characters are also rejected, because they would end a line of FFmpeg's
    request.

    Raises:
        InvalidOption: the address is invalid. The message explains how to escape the characters,
            and does not contain the password.
    """
    _check_characters(text)
    scheme, _, rest = text.partition("://")
    before, apart, _ = rest.rpartition("@")
    # An "@" in a path is treated as the end of a password only if a ":" or "@" comes before it.
    if not apart or not re.search("[/?#]", before) or not re.search("[:@]", before):
        return
    escapes = [f"{each} as %{ord(each):02X}" for each in "#/?@" if each in before]
    raise InvalidOption(
        f"the password in the {scheme[:20].lower()}:// URL has characters with a special meaning: "
        f"write {' and '.join(escapes)} in the password, and @ in the path as %40"
    )


def _check_characters(text: str) -> None:
    """Raise InvalidOption if a character would end a line of FFmpeg's request to a camera."""
    decoded = unquote(text)
    if any(each.isspace() for each in text) or not decoded.replace(" ", "").isprintable():
        raise InvalidOption(
            "the URL has a space, a line feed or another invalid character: write a space as %20"
        )


def check_address(address: SourceAddress, reach: Reach) -> SourceAddress:
    """Return the address to open, after all HTTP redirects. This function blocks.

    The returned address contains the checked IP address instead of the host name. The reader
    rejects RTSP redirects. If `reach` allows private addresses, an RTSP address is returned
    unchanged, because UDP does not work with the relay for checked addresses.

    Raises:
        FetchRefused: the host is unknown, or `reach` does not allow it.
    """
    if address.kind in ("file", "device") or reach.everywhere:
        return address
    if address.kind == "http":
        return _follow_redirects(address, reach)
    number = _check_host(address, reach)
    return address if reach.private else address.at(number)


def check_reach(address: SourceAddress, reach: Reach) -> None:
    """Raise FetchRefused if `reach` does not allow a host. This function blocks.

    A host name without an IP address is accepted, because it may get one later.
    """
    if address.kind in ("file", "device") or reach.everywhere:
        return
    with suppress(socket.gaierror, UnicodeError):
        reach.check(host := address.url.hostname or "", _numbers(host))


def _numbers(host: str) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _check_host(address: SourceAddress, reach: Reach) -> str:
    host = address.url.hostname or ""
    try:
        numbers = _numbers(host)
    except (socket.gaierror, UnicodeError):
        raise FetchRefused(f"unknown host '{host}'") from None
    reach.check(host, numbers)
    return numbers[0]


def _follow_redirects(address: SourceAddress, reach: Reach) -> SourceAddress:
    # Import httpx here, because the import takes a tenth of a second and most servers do not need
    # it.
    import httpx

    for _ in range(MAX_REDIRECTS + 1):
        pinned = address.at(_check_host(address, reach))
        try:
            with (
                httpx.Client(trust_env=False, follow_redirects=False, timeout=_LOOK_S) as client,
                client.stream(
                    "GET",
                    pinned.text,
                    headers={**OURS, "Host": pinned.name},
                    extensions={"sni_hostname": address.url.hostname},
                ) as answer,
            ):
                if not answer.has_redirect_location:
                    return pinned
                target = httpx.URL(address.text).join(answer.headers["location"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise FetchRefused(f"the URL does not respond: {type(error).__name__}") from None
        if target.scheme not in ("http", "https"):
            raise FetchRefused(
                f"the URL redirects to {target.scheme[:20]}://, but only http:// and https:// are "
                "allowed"
            )
        try:
            address = SourceAddress.parse(str(target))
        except InvalidOption as error:
            raise FetchRefused(f"the URL redirects to an invalid URL: {error}") from None
    raise FetchRefused(f"the URL redirects more than {MAX_REDIRECTS} times")


async def opened_at(address: SourceAddress, reach: Reach) -> SourceAddress:
    """Run `check_address` in a thread."""
    return await asyncio.to_thread(check_address, address, reach)
