"""A request over any transport: its client, its operation, and its outcome."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from fovea_preprocess.errors import FoveaError
from fovea_server.log_lines import REQUEST_ID
from fovea_server.observability.spans import SPAN, RequestSpan

if TYPE_CHECKING:
    from fovea_server.traffic.principal import Principal
    from fovea_server.traffic.traffic import Traffic

NO_CAPTURE = "x-fovea-no-capture"

Header = Callable[[str], str | None]

REQUEST_ID_HEADER = "x-request-id"
CLIENT_LEFT = 499
"""Status code that is logged if a client disconnects before the response; nginx uses it too."""
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Holder of the current request's key, or the IP address of the client if there is no key.

The text is "" if both are unknown.
"""

# Valid request ids. The id appears in log lines and headers, so it must not contain spaces or
# control characters.
_SANE = re.compile(r"[\x21-\x7e]{1,128}")
# Prefix of the ids of new requests. A random prefix per process and a counter make unique ids, in
# much less time than a UUID. The ids need not be secret.
_PROCESS = secrets.token_hex(8)
_COUNTER = itertools.count(1)
_FIELD_KEY = re.compile(r"([?&]api_key=)([^&]*)")
# Query parameters that may contain a key or token, also with percent-encoded names. Logs hide the
# values of these parameters.
_SECRETS = re.compile(r"([?&](?:api(?:_|-|%5f|%2d)?key|(?:access_)?token)=)([^&]*)", re.IGNORECASE)
# Headers whose values are joined if the header occurs several times. If Sec-WebSocket-Key occurs
# twice, its joined value is invalid, so the request fails.
_LISTS = frozenset((b"accept", b"accept-encoding", b"connection", b"sec-websocket-key"))


def may_keep(call: Call | None) -> bool:
    """Return whether images of the request may be captured.

    They may not if the request forbids it, or if the request's key lacks the scope `capture`.
    """
    if call is None:
        return True
    if call.header(NO_CAPTURE) is not None:
        return False
    return call.principal is None or "capture" in call.principal.scopes


def request_id(given: str | None) -> str:
    """Return the client's request id, or a new one if it is missing or invalid.

    A valid id has 1 to 128 printable ASCII characters without spaces.
    """
    if given is not None and _SANE.fullmatch(given):
        return given
    return f"{_PROCESS}{next(_COUNTER):08x}"


def fields(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name.

    If a name occurs several times, the values are joined for headers in `_LISTS`; for other
    headers, the last value is returned.
    """
    found = dict(headers)
    if len(found) < len(headers):
        for name in _LISTS & found.keys():
            found[name] = b", ".join(value for one, value in headers if one == name)
    return found


def lookup(headers: Mapping[bytes, bytes]) -> Header:
    """Return a function that looks up headers by name, regardless of case."""

    def header(name: str) -> str | None:
        value = headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return header


class Call:
    """A request. Its transport creates it from the request line and headers, and ends it once.

    Attributes:
        method: HTTP method, or name of the RPC.
        is_rpc: True for gRPC.
        path: path with query, as the client sent it; for gRPC, the full name of the method.
        client: IP address of the client; None if it is unknown.
        header: looks up an HTTP header or gRPC metadata by name; returns None if it is missing.
        id: request id in the log and in the response.
        began: value of `time.monotonic()` when the request began.
        model: name of the requested model; "" for none.
        operation: name of the inference operation, which contains no text that clients choose; ""
            for requests that are not inference.
        probe: True for a health probe, which is logged at DEBUG.
        control: description of the change that the request makes to the server; "" if the request
            changes nothing.
        secret: name of the secret that the change requires; None if it requires no secret.
        span: record for the trace of the request; None if the request is not traced.
        principal: holder of the request's key; None if the server requires no key, or has not
            checked it yet.
        images: number of images charged to the principal.
        paid: number of images that were charged and then failed, so that repeating them is not
            charged again.
        again: looks up the principal again, for the parts of a long call; raises an error if the
            key has expired.
        field_key: key from the field `api_key` of a query or body, for APIs of other programs that
            send keys in this field.
    """

    __slots__ = (
        *("_traffic", "method", "path", "client", "header", "id", "began", "model", "operation"),
        *("probe", "control", "secret", "span", "is_rpc", "principal", "images", "paid"),
        *("field_key", "again"),
    )

    def __init__(
        self,
        traffic: Traffic,
        method: str,
        path: str,
        client: str | None,
        header: Header,
        *,
        is_rpc: bool = False,
    ) -> None:
        self._traffic, self.is_rpc = traffic, is_rpc
        self.method, self.path, self.client, self.header = method, path, client, header
        self.id = request_id(header(REQUEST_ID_HEADER))
        self.began = time.monotonic()
        self.model = self.operation = self.control = ""
        self.probe = False
        self.secret: str | None = None
        self.span: RequestSpan | None = None
        self.principal: Principal | None = None
        self.images = self.paid = 0
        self.field_key: str | None = None
        self.again: Callable[[], Principal] | None = None

    def infers(self, operation: str) -> None:
        """Mark the request as an inference request.

        Such requests are measured and may be traced.
        """
        self.operation = operation
        if (tracer := self._traffic.tracer) is not None:
            self.span = tracer.begin(self.header("traceparent"), self.header("tracestate"))

    def controls(self, what: str, secret: str | None) -> None:
        """Record the change that the request makes, and the name of the secret that it requires."""
        self.control, self.secret = what, secret

    def enter(self) -> None:
        """Set the context variables of the current task: client, request id, span, and call."""
        REQUEST_ID.set(self.id)
        CLIENT.set((self.client or "") if self.principal is None else self.principal.called)
        SPAN.set(self.span)
        CALL.set(self)

    @property
    def token(self) -> str | None:
        """The key that was sent with the request; None if no key was sent."""
        scheme, _, rest = (self.header("authorization") or "").partition(" ")
        if scheme.lower() in ("bearer", "token"):
            return rest.strip()
        if scheme.lower() == "basic":
            # Label Studio and similar programs send only a user and a password. The password is the
            # key.
            with suppress(ValueError):
                return b64decode(rest, validate=True).decode().partition(":")[2]
        return self.header("x-api-key") or self.field_key

    @property
    def shown(self) -> str:
        """The path for logs; the values of keys in the query are replaced by "..."."""
        path = self.path
        return path if "?" not in path else _SECRETS.sub(r"\1...", path)

    def take_field_key(self, query: str) -> None:
        """Take the key from the field `api_key` of a query, if the query has this field."""
        if found := _FIELD_KEY.search(f"?{query}"):
            self.field_key = unquote_plus(found[2])

    def part(self, *, admitted: bool = True) -> Call:
        """Make the call for one of several requests inside this request.

        The part is measured but not logged. If `admitted` is True, the key of this request is
        checked again.

        Raises:
            Unauthenticated, Forbidden: the key is no longer valid.
        """
        part = Call(
            self._traffic, self.method, self.path, self.client, self.header, is_rpc=self.is_rpc
        )
        part.id, part.again = self.id, self.again
        part.principal = self.principal
        if admitted and self.again is not None:
            part.principal = self.again()
        return part

    def measure(self, status: int | str, error: FoveaError | None = None) -> None:
        """Measure the end of a part, or of a call that another function logs; see `end`."""
        self._traffic.measure(self, status, error)

    def end(self, status: int | str, size: int = 0, error: FoveaError | None = None) -> None:
        """Measure, trace and log the end of the request.

        Args:
            status: HTTP status code, or name of the gRPC status.
            size: size of the response body in bytes.
            error: the error in the response; None if there is no error.
        """
        self._traffic.measure(self, status, error)
        self._traffic.log(self, status, size)


CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The request that is being processed."""
