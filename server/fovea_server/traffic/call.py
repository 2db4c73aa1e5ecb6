"""One request, whatever carries it: its sender, its purpose, and its outcome."""

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
"""The status that proxies log for a client that left before the answer."""
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Key, or else address, of the client whose request is being answered; "" where it is unknown."""

# No spaces and no control characters: the id stands in log lines and in headers.
_SANE = re.compile(r"[\x21-\x7e]{1,128}")
# Together unique, and much cheaper than a UUID; an id need not be secret.
_PROCESS = secrets.token_hex(8)
_COUNTER = itertools.count(1)
_FIELD_KEY = re.compile(r"([?&]api_key=)([^&]*)")
# As others may call it, or write it.
_SECRETS = re.compile(r"([?&](?:api(?:_|-|%5f|%2d)?key|(?:access_)?token)=)([^&]*)", re.IGNORECASE)
# Joined, a second key of a WebSocket makes the first none, too.
_LISTS = frozenset((b"accept", b"accept-encoding", b"connection", b"sec-websocket-key"))


def may_keep(call: Call | None) -> bool:
    """Return True unless the request refuses, or its key lacks the scope `capture`."""
    if call is None:
        return True
    if call.header(NO_CAPTURE) is not None:
        return False
    return call.principal is None or "capture" in call.principal.scopes


def request_id(given: str | None) -> str:
    """Return the client's id, or a fresh one if it is absent, too long or not printable ASCII."""
    if given is not None and _SANE.fullmatch(given):
        return given
    return f"{_PROCESS}{next(_COUNTER):08x}"


def fields(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name: the last of several with one name, and all of those that list."""
    found = dict(headers)
    if len(found) < len(headers):
        for name in _LISTS & found.keys():
            found[name] = b", ".join(value for one, value in headers if one == name)
    return found


def lookup(headers: Mapping[bytes, bytes]) -> Header:
    """Look up headers of HTTP by any spelling; their own names are in lower case."""

    def header(name: str) -> str | None:
        value = headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return header


class Call:
    """A request. Its carrier makes it of the head, and ends it once with the status it was given.

    Attributes:
        method: of HTTP, or name of the RPC.
        is_rpc: gRPC carries it.
        path: with its query, as sent; of gRPC the full name of the method.
        client: its address; None where that is unknown.
        header: looks up a header or metadata by its name; None if absent.
        id: in the log and in the answer.
        began: by `time.monotonic`.
        model: name of the model that it is for; "" for none.
        operation: of a request that asks a model to infer, without names that clients choose; ""
            for all others.
        probe: it is logged at DEBUG.
        control: how it changes the server; "" if it does not.
        secret: key of the secret that it needs for that, if any.
        span: of a request that is traced; None for nearly all.
        principal: the client that its key names; None where the server needs no key, or has not
            looked yet.
        images: for which the principal was charged.
        paid: of these, what was not answered, and is requested again at no charge.
        again: finds the principal again, for the parts of a long call; raises once the key has
            expired.
        field_key: in a field of an API of other software, of its address or its body.
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
        """Measure it as a request that asks a model to infer; it may be traced."""
        self.operation = operation
        if (tracer := self._traffic.tracer) is not None:
            self.span = tracer.begin(self.header("traceparent"), self.header("tracestate"))

    def controls(self, what: str, secret: str | None) -> None:
        """Log that it changes the server, or tries to, and the key of the secret for that."""
        self.control, self.secret = what, secret

    def enter(self) -> None:
        """Let the current task know the request: its log lines, its place in queues, its span."""
        REQUEST_ID.set(self.id)
        CLIENT.set((self.client or "") if self.principal is None else self.principal.called)
        SPAN.set(self.span)
        CALL.set(self)

    @property
    def token(self) -> str | None:
        """The key that it was sent with; None without one."""
        scheme, _, rest = (self.header("authorization") or "").partition(" ")
        if scheme.lower() in ("bearer", "token"):
            return rest.strip()
        if scheme.lower() == "basic":
            # Of programs that know users and passwords alone, as Label Studio: the password.
            with suppress(ValueError):
                return b64decode(rest, validate=True).decode().partition(":")[2]
        return self.header("x-api-key") or self.field_key

    @property
    def shown(self) -> str:
        """The path as logs show it: without a key that a client put into its query."""
        path = self.path
        return path if "?" not in path else _SECRETS.sub(r"\1...", path)

    def take_field_key(self, query: str) -> None:
        """Take a key of the field `api_key` of a query, where the API has that."""
        if found := _FIELD_KEY.search(f"?{query}"):
            self.field_key = unquote_plus(found[2])

    def part(self, *, admitted: bool = True) -> Call:
        """Make the call of one of several requests in this one: it is measured and not logged.

        Raises:
            Unauthenticated, Forbidden: the key does not hold any more, and it was to be admitted.
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
        """End a part of a call, or one that is logged elsewhere; see `end`."""
        self._traffic.measure(self, status, error)

    def end(self, status: int | str, size: int = 0, error: FoveaError | None = None) -> None:
        """Measure, trace and log it.

        Args:
            status: of HTTP, or the name of gRPC's.
            size: bytes of the answer's body.
            error: that was the answer, if any.
        """
        self._traffic.measure(self, status, error)
        self._traffic.log(self, status, size)


CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The request that is being answered."""
