"""Rejects requests that web pages of other sites make a browser send.

A page of any site can make a browser send requests to this server, even if the page cannot read the
responses. The browser may run on this machine or in its network. Two headers, which no page can
set, reveal such requests.

`Origin` is the origin of the page. Requests that may change the server are accepted only from pages
of this server and of the origins that the operator allows.

`Host` is the host name in the request's URL. An attacker can let his own name resolve to the
address of this server ("DNS rebinding"), and the browser then treats his page as a page of this
server. The name must therefore be one that an attacker cannot register. Programs other than
browsers send no `Origin`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

from fovea_preprocess.errors import ForeignRequest
from fovea_server.auth.restrictions import is_loopback
from fovea_server.dataplane.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

Headers = Mapping[bytes, bytes]
Refuse = Callable[[ForeignRequest, str], "ASGIApp"]

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Pattern of a Host header: name or address, and port. URL parsers would also accept a user name and
# a path.
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-z:.%_-]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")
_ELSEWHERE = (b"cross-site", b"same-site")
# Suffixes that cannot be registered publicly: mDNS, clusters (cluster.local) and private networks.
_PRIVATE = (".local", ".internal", ".lan", ".home.arpa", ".svc")


class Guard:
    """Checks the Origin and Host headers of requests.

    `address` is the address to which the server is bound.
    """

    def __init__(self, service: Service, address: str) -> None:
        settings = service.settings
        self._traffic = service.traffic
        self._origins = frozenset(origin.encode() for origin in settings.cors_origin)
        self._names = {address.lower(), *settings.allowed_host}
        # Clients in a network use host names of that network. On the loopback interface the only
        # host name is `localhost`. Browsers resolve `localhost` themselves, so a hostile network
        # cannot redirect it.
        self._is_open = not is_loopback(address)
        if self._is_open:
            self._names.add(socket.gethostname().lower())
        self._is_ours = lru_cache(maxsize=256)(self._has_our_name)

    def check(self, method: str, headers: Headers) -> None:
        """Raise ForeignRequest if a page of another site caused the request.

        The metrics count the rejected request.
        """
        error = self.refusal(method, headers)
        if error is not None:
            self._traffic.count_refusal("", error)
            raise error

    def refusal(self, method: str, headers: Headers) -> ForeignRequest | None:
        """Return the error if a page of another site caused the request, otherwise None."""
        host = headers.get(b"host", b"")
        if not self._is_ours(host):
            return ForeignRequest(
                f"unknown Host {_quote(host)}: use the server's IP address, or start the server "
                "with --allowed-host NAME"
            )
        if method in _SAFE:
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin in self._origins or b"*" in self._origins or site == b"same-origin":
            return None
        if site not in _ELSEWHERE and (origin is None or _authority(origin) == host.lower() != b""):
            return None
        return ForeignRequest(
            f"a page of another site ({_quote(origin or site or b'')}) sent this request: start "
            "the server with --cors-origin ORIGIN if pages of this site may use it"
        )

    def _has_our_name(self, host: bytes) -> bool:
        # HTTP/1.0 requires no Host header, but browsers always send it.
        if not host or "*" in self._names:
            return True
        found = _HOST.fullmatch(host.decode("latin-1").lower())
        if found is None:
            return False
        name = (found["name"] or found["address"]).removesuffix(".")
        if name in self._names or _is_address(name):
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return True
        # A host name without a dot is the name of a service, a container or a machine in the local
        # network.
        return self._is_open and ("." not in name or name.endswith(_PRIVATE))


class GuardedApp:
    """An ASGI application that passes accepted requests to `app`, and rejected ones to `refuse`."""

    def __init__(self, app: ASGIApp, guard: Guard, refuse: Refuse) -> None:
        self._app, self._guard, self._refuse = app, guard, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI specifies."""
        if scope["type"] == "http":
            try:
                self._guard.check(scope["method"], scope["state"]["headers"])
            except ForeignRequest as error:
                await self._refuse(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _authority(origin: bytes) -> bytes:
    return origin.partition(b"://")[2].lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _quote(given: bytes) -> str:
    return repr(given[:80].decode("latin-1"))
