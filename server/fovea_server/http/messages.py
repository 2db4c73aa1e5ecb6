"""Requests and answers of the plain routes, and their headers.

Those of Starlette take 3 us more, of 150 us for a small tensor, and an answer there is one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fovea_preprocess.errors import (
    FoveaError,
    InvalidRequest,
    KeysPending,
    ModelLoading,
    NoMemory,
    QueueFull,
    Unauthenticated,
    UpgradeRequired,
)

if TYPE_CHECKING:
    from fovea_server.byte_budget import Reservation
    from fovea_server.dataplane.service import Service
    from fovea_server.traffic.call import Call

JSON = b"application/json"
BINARY = b"application/octet-stream"
TEXT = b"text/plain"
EVENTS = b"text/event-stream; charset=utf-8"

Buffer = bytes | memoryview
Endpoint = Callable[["Service", "Request"], Coroutine[Any, Any, "Response"]]

# Decimal digits that always fit a signed 64-bit number.
_LONGEST_VERSION = 18


@dataclass(slots=True, eq=False)
class Request:
    """A request.

    Attributes:
        call: the part that all carriers share.
        headers: by name in lower case; see `fields`.
        body: as sent; complete when an endpoint gets it.
        answer: where the request needs no endpoint; mostly a refusal.
        endpoint: answers it, once its body is complete.
        names: "model", "version", and others that the route has in its path; None if absent.
        timeout_s: seconds that it may take in all; None for no limit.
        reservation: of the answer, from before it is computed.
        hold: counts bytes held for the request, also those sent; raises QueueFull.
    """

    call: Call
    headers: dict[bytes, bytes]
    reservation: Reservation
    body: bytes | bytearray = b""
    answer: Response | None = None
    endpoint: Endpoint | None = None
    names: Mapping[str, str | None] = field(default_factory=dict)
    timeout_s: float | None = None
    hold: Callable[[int], None] = field(init=False)

    def header(self, name: str) -> str | None:
        """Look up a header; None if absent."""
        return self.call.header(name)

    def name(self, kind: str) -> str:
        """Return the name of a model or region in the path; "" if absent."""
        return self.names[kind] or ""

    @property
    def version(self) -> int | None:
        """The version in the path; None if absent."""
        text = self.names["version"]
        if text is None:
            return None
        if len(text) > _LONGEST_VERSION:
            raise InvalidRequest(
                f"failed to get model version from specified version string '{text}', version "
                "should be an integral value > 0"
            )
        return int(text)


@dataclass(slots=True, eq=False)
class Response:
    """An answer, its body in pieces; `error` if it reports one."""

    status: int = 200
    body: list[Buffer] = field(default_factory=list)
    media_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    error: FoveaError | None = None


def error_headers(error: FoveaError) -> list[tuple[bytes, bytes]]:
    """Return the headers that say how to go on after an error."""
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b'Bearer realm="fovea"')]
    if isinstance(error, QueueFull | NoMemory | KeysPending | ModelLoading):
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s)))]
    if isinstance(error, UpgradeRequired):
        return [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
    return []


def allow(methods: Collection[str]) -> str:
    """Make the `Allow` header of an address: where GET is answered, so are HEAD and OPTIONS."""
    also = ("HEAD", "OPTIONS") if "GET" in methods else ()
    return ", ".join(sorted({*methods, *also}))


def weights(header: str) -> Iterator[tuple[str, float]]:
    """Yield each entry of a list such as `Accept` in lower case, and its weight.

    It is 1 where there is none, and 0 where that is no number.
    """
    for part in header.lower().split(","):
        entry, *parameters = (word.strip() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            yield entry, float(quality)
        except ValueError:
            yield entry, 0.0
