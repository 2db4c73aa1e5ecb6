"""Refuses what pages of other sites make a browser send.

A browser on this machine or in its network sends whatever a page asks for, also where the page may
not read the answer. Two headers tell, which no page can set. `Origin` names the page: a request
that may change something is taken from pages of this server alone, and of those that the operator
names. `Host` is the name that the browser looked up: an attacker can let a name of his own lead to
this server ("DNS rebinding"), and his page is then one of this server for the browser. So a name
must be one that is nobody's to give away. Programs that are no browsers send no `Origin`.
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
# Name or address, and port. Parsers of URLs find a name also where there are a user and a path.
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-z:.%_-]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")
_ELSEWHERE = (b"cross-site", b"same-site")
# Ends of names that no registrar sells: mDNS and clusters (cluster.local), private networks.
_PRIVATE = (".local", ".internal", ".lan", ".home.arpa", ".svc")


class Guard:
    """Checks the origin and the host of requests to a listener, which is bound to `address`."""

    def __init__(self, service: Service, address: str) -> None:
        settings = service.settings
        self._traffic = service.traffic
        self._origins = frozenset(origin.encode() for origin in settings.cors_origin)
        self._names = {address.lower(), *settings.allowed_host}
        # Whoever reaches it over a network goes by a name of that network. By loopback there is
        # only `localhost`, which browsers resolve themselves: a hostile network cannot redirect it.
        self._is_open = not is_loopback(address)
        if self._is_open:
            self._names.add(socket.gethostname().lower())
        self._is_ours = lru_cache(maxsize=256)(self._has_our_name)

    def check(self, method: str, headers: Headers) -> None:
        """Raise ForeignRequest for one that a page of another site has caused."""
        error = self.refusal(method, headers)
        if error is not None:
            self._traffic.count_refusal("", error)
            raise error

    def refusal(self, method: str, headers: Headers) -> ForeignRequest | None:
        """Return the error for a request that a page of another site has caused, else None."""
        host = headers.get(b"host", b"")
        if not self._is_ours(host):
            return ForeignRequest(
                f"this server does not go by the name {_quote(host)}: ask it by its address, or "
                "start it with --allowed-host NAME, which may be repeated"
            )
        if method in _SAFE:
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin in self._origins or b"*" in self._origins or site == b"same-origin":
            return None
        if site not in _ELSEWHERE and (origin is None or _authority(origin) == host.lower() != b""):
            return None
        return ForeignRequest(
            f"the page of another site ({_quote(origin or site or b'')}) sent this request: start "
            "the server with --cors-origin ORIGIN if its pages may use it"
        )

    def _has_our_name(self, host: bytes) -> bool:
        # HTTP/1.0 needs no host, and a browser sends one always.
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
        # A name without a dot is one of a service, a container or a machine near by.
        return self._is_open and ("." not in name or name.endswith(_PRIVATE))


class GuardedApp:
    """An ASGI application that answers only what a guard lets through, as `refuse` says."""

    def __init__(self, app: ASGIApp, guard: Guard, refuse: Refuse) -> None:
        self._app, self._guard, self._refuse = app, guard, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
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
