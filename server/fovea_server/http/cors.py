"""Cross-origin requests: answers that pages from elsewhere may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Headers = Sequence[tuple[bytes, bytes]]

# Headers that a page may read: browsers hide all others.
_EXPOSED = ("Inference-Header-Content-Length", "Retry-After", "X-Request-Id")
_EXPOSE = (b"access-control-expose-headers", ", ".join(_EXPOSED).encode())
_ALLOW, _VARY = b"access-control-allow-origin", (b"vary", b"Origin")


class Cors:
    """Marks the answers that pages of other origins may read; none without `origins`.

    Starlette's middleware marks those of the ASGI application, and answers every preflight, which
    carries no secret and so asks for none. Those of a `Front` do not pass through it.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._everyone = b"*" in self._origins

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application that also gets the preflights of every `Front`."""
        if not self._origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=[origin.decode() for origin in self._origins],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Return True for a request that asks if another one may be sent."""
        if method != "OPTIONS" or not self._origins:
            return False
        return {b"origin", b"access-control-request-method"} <= dict(headers).keys()

    def headers(self, asked: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that let the page which sent these read the answer."""
        if not self._origins:
            return ()
        origin = asked.get(b"origin")
        if self._everyone:
            return () if origin is None else ((_ALLOW, b"*"), _EXPOSE)
        if origin is None or origin not in self._origins:
            return (_VARY,)
        return ((_ALLOW, origin), _EXPOSE, _VARY)
