"""Fetching pictures that requests name by URL, without becoming somebody's proxy.

A server that fetches what strangers name can be sent to addresses that only it can reach. So:
http and https only; every address that the name resolves to must be public, and the connection
goes to the very address that was checked (a second look-up could answer differently); each
redirect is checked again; size and time are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import httpx

from fovea_preprocess.errors import FetchRefused

MAX_REDIRECTS = 3


class Fetcher:
    """Fetches pictures; an async context manager.

    Args:
        max_bytes: largest picture.
        timeout_s: for one picture, redirects included.
        allow_private: also fetch from addresses that are not public.
    """

    def __init__(self, *, max_bytes: int, timeout_s: float, allow_private: bool) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._allow_private = allow_private
        # Proxies and .netrc of the environment would undo the address check.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def fetch(self, address: str) -> bytes:
        """The bytes behind an address.

        Raises:
            FetchRefused: it may not be fetched, or could not.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(address)
        except TimeoutError:
            raise FetchRefused(f"the url did not answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise FetchRefused(f"the url could not be fetched: {type(error).__name__}") from None

    async def _follow(self, address: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            url = _parsed(address)
            pinned = url.copy_with(host=await self._checked_address(url))
            request = self._client.build_request(
                "GET",
                pinned,
                headers={"Host": url.netloc.decode(), "Accept": "image/*"},
                extensions={"sni_hostname": url.host},
            )
            response = await self._client.send(request, stream=True)
            try:
                if response.is_redirect:
                    address = str(url.join(response.headers["location"]))
                    continue
                if response.status_code != httpx.codes.OK:
                    raise FetchRefused(f"the url answered with status {response.status_code}")
                return await self._limited(response)
            finally:
                await response.aclose()
        raise FetchRefused(f"the url redirects more than {MAX_REDIRECTS} times")

    async def _limited(self, response: httpx.Response) -> bytes:
        body = bytearray()
        # Decoded bytes are counted, so a compressed answer cannot grow past the limit.
        async for chunk in response.aiter_bytes(65536):
            body += chunk
            if len(body) > self._max_bytes:
                raise FetchRefused(f"the picture is over {self._max_bytes / 1e6:g} MB")
        return bytes(body)

    async def _checked_address(self, url: httpx.URL) -> str:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                url.host, port, type=socket.SOCK_STREAM
            )
        except (socket.gaierror, UnicodeError):
            raise FetchRefused(f"the host '{url.host}' is not known") from None
        addresses = [str(info[4][0]) for info in found]
        if not self._allow_private:
            for address in addresses:
                if not _is_public(address):
                    raise FetchRefused(f"the host '{url.host}' is not a public address")
        return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return ip.is_global and not ip.is_multicast


def _parsed(address: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        raise FetchRefused("the url cannot be read") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchRefused("the url must begin with http:// or https:// and name a host")
    if url.userinfo:
        raise FetchRefused("the url must not carry a user name or password")
    return url
