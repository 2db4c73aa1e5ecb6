"""Fetches images that requests name by URL, without becoming an open proxy.

A client could make the server fetch from addresses that only the server can reach. The following
rules prevent this: - Only http and https are allowed. - Every address of the host name must be
within reach. The connection goes to the checked address,
  because a second name look-up could return another one.
- Each redirect is checked again.
- Size and time are limited.
- No cookie and no connection is kept from one request to the next.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from fovea_preprocess.errors import FetchRefused
from fovea_preprocess.text import size_text
from fovea_server.dataplane.reach import OURS, Reach

MAX_REDIRECTS = 3


class Fetcher:
    """Fetches images; call `close` after the last one.

    Args:
        max_bytes: largest size of an image file in bytes.
        timeout_s: timeout in seconds for one image, including redirects.
        reach: addresses that the server may fetch from.
    """

    def __init__(self, *, max_bytes: int, timeout_s: float, reach: Reach) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._reach = reach
        # httpx does not read proxies and .netrc from the environment, because they would bypass the
        # address check. It does not keep connections alive, because it would find them by IP
        # address alone: a connection whose certificate was checked for one name could then serve
        # another name. `fetch` limits the time.
        self._client = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=0),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def fetch(
        self, address: str, hold: Callable[[int], None], authorization: str | None = None
    ) -> bytes:
        """Fetch the bytes at a URL.

        Args:
            address: URL of the image.
            hold: function that counts bytes as they arrive.
            authorization: value of the Authorization header. After a redirect to another host, the
                header is not sent.

        Raises:
            FetchRefused: the URL may not be fetched, or the fetch failed.
            QueueFull: `hold` has no room for the image.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(address, authorization, hold)
        except TimeoutError:
            raise FetchRefused(f"the URL did not respond within {self._timeout_s:g} s") from None
        # httpx accepts some host names and lengths that idna, ssl or int reject later with a
        # ValueError.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise FetchRefused(f"the URL could not be fetched: {type(error).__name__}") from None

    async def _follow(
        self, address: str, authorization: str | None, hold: Callable[[int], None]
    ) -> bytes:
        first = _parse_url(address)
        for _ in range(MAX_REDIRECTS + 1):
            url = _parse_url(address)
            # Use the encoded host name, which is also looked up. `url.host` decodes the name, and
            # fails if it is invalid.
            host = url.raw_host.decode("ascii")
            pinned = url.copy_with(host=await self._checked_address(host))
            headers = {
                **OURS,
                "Host": url.netloc.decode("ascii"),
                # Accept all types, because Label Studio sends no files to clients that accept only
                # images.
                "Accept": "image/*, */*;q=0.5",
                "Accept-Encoding": "identity",
            }
            if authorization and (url.scheme, url.netloc) == (first.scheme, first.netloc):
                headers["Authorization"] = authorization
            request = self._client.build_request(
                "GET", pinned, headers=headers, extensions={"sni_hostname": host}
            )
            response = await self._client.send(request, stream=True)
            try:
                if response.has_redirect_location:
                    address = str(url.join(response.headers["location"]))
                    continue
                if response.status_code != httpx.codes.OK:
                    raise FetchRefused(f"the URL returned status {response.status_code}")
                return await self._read_body(response, hold)
            finally:
                await response.aclose()
        raise FetchRefused(f"the URL redirects more than {MAX_REDIRECTS} times")

    async def _read_body(self, response: httpx.Response, hold: Callable[[int], None]) -> bytes:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise FetchRefused("the URL returned a compressed response, which was not requested")
        too_large = FetchRefused(
            f"the image exceeds the limit of {size_text(self._max_bytes)}: send a smaller image, "
            "or raise --max-image-mb"
        )
        if int(response.headers.get("content-length", 0)) > self._max_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_raw():
            hold(len(chunk))
            body += chunk
            if len(body) > self._max_bytes:
                raise too_large
        return bytes(body)

    async def _checked_address(self, host: str) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
        except (socket.gaierror, UnicodeError):
            raise FetchRefused(f"unknown host '{host}'") from None
        addresses = [str(info[4][0]) for info in found]
        self._reach.check(host, addresses)
        return addresses[0]


def _parse_url(address: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, UnicodeError):
        raise FetchRefused("the URL cannot be parsed") from None
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise FetchRefused("the URL must begin with http:// or https:// and have a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise FetchRefused("the URL's port must be from 1 to 65535")
    if url.userinfo:
        raise FetchRefused("the URL must not contain a user name or password")
    return url
