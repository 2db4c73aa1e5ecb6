"""Requests and responses of the fast routes, and their headers.

Starlette's classes are not used here. They take 3 us longer per request (a small tensor takes 150
us in total), and cannot hold a body in pieces.
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

# Largest number of decimal digits of a version. A number with 18 digits always fits into a signed
# 64-bit integer.
_LONGEST_VERSION = 18


@dataclass(slots=True, eq=False)
class Request:
    """A request.

    Attributes:
        call: part of the request that does not depend on the transport; the log and the metrics use
            it.
        headers: values of the headers by lower-case name; see `fields`.
        reservation: object that reserves memory for the response before the response is computed.
        body: complete body as the client sent it; empty until the body has arrived.
        answer: response of a request without an endpoint, usually a rejection.
        endpoint: function that answers the request after its body is complete.
        names: values of "model", "version" and other names in the path; None for an absent name.
        timeout_s: timeout of the whole request in seconds; None for no timeout.
        hold: function that counts further bytes of the request in the memory budget; it may raise
            QueueFull.
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
        """Return the value of a header, or None if the header is absent."""
        return self.call.header(name)

    def name(self, kind: str) -> str:
        """Return the name of a model or shared memory region in the path.

        If the path has none, return "".
        """
        return self.names[kind] or ""

    @property
    def version(self) -> int | None:
        """Return the version in the path, or None if the path has no version."""
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
    """A response.

    `body` is a list of pieces; `error` is the error that the response reports, if any.
    """

    status: int = 200
    body: list[Buffer] = field(default_factory=list)
    media_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    error: FoveaError | None = None


def error_headers(error: FoveaError) -> list[tuple[bytes, bytes]]:
    """Return the headers that a client needs after an error, for example `Retry-After`."""
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b'Bearer realm="fovea"')]
    if isinstance(error, QueueFull | NoMemory | KeysPending | ModelLoading):
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s)))]
    if isinstance(error, UpgradeRequired):
        return [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
    return []


def allow(methods: Collection[str]) -> str:
    """Return the `Allow` header of a path. A path with GET also has HEAD and OPTIONS."""
    also = ("HEAD", "OPTIONS") if "GET" in methods else ()
    return ", ".join(sorted({*methods, *also}))


def weights(header: str) -> Iterator[tuple[str, float]]:
    """Yield each entry of a header with a list, such as `Accept`, in lower case with its weight.

    The weight of an entry without `q=` is 1. If the value of `q=` is not a number, the weight is 0.
    """
    for part in header.lower().split(","):
        entry, *parameters = (word.strip() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            yield entry, float(quality)
        except ValueError:
            yield entry, 0.0
