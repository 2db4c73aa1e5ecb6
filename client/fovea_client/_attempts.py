"""Decides when each attempt of a request is sent, and reads its outcome. It does no I/O itself."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

import httpx

from fovea_client._requests import Request
from fovea_client.errors import ConnectionFailed, FoveaClientError, ServerError, UnexpectedAnswer

Answer = TypeVar("Answer")
FIRST_WAIT_S = 0.1
# Errors of a request that was not sent completely. The server cannot have executed it.
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.LocalProtocolError,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.WriteTimeout,
)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
# Statuses that reject a request before it is executed. A proxy may return another error status
# after the server has executed the request.
_REFUSED = (429, 503)


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A request, and the function that converts its response to a result."""

    request: Request
    read: Callable[[httpx.Response], Answer]


@dataclass(frozen=True, slots=True)
class Policy:
    """The URL of a server, and the timeout and retries of its requests; see `Client`."""

    url: str
    timeout: float
    retries: int
    repeat_unanswered: bool
    headers: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.timeout, int | float) and 0 < self.timeout < math.inf):
            raise ValueError(f"timeout must be a positive number of seconds, not {self.timeout!r}")
        if not (isinstance(self.retries, int) and self.retries >= 0):
            raise ValueError(f"retries must be a whole number of 0 or more, not {self.retries!r}")
        for name, value in self.headers.items():
            if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
                # The message leaves out the value, which may be a secret.
                raise ValueError(
                    f"the header {name!r} cannot be sent: use only ASCII letters, digits and "
                    "hyphens in the name, and only printable ASCII in the value, without spaces "
                    "at its ends"
                )


class Attempts(Generic[Answer]):
    """The attempts at one call.

    The iterator yields seconds to wait and then a request to send, until an attempt succeeds. Then
    `answer` is the result. Call `received` or `failed` after each request. After the last attempt
    the iterator raises its error.

    Attributes:
        answer: result of the call.
        until: time on the monotonic clock at which the call times out, in seconds.
    """

    answer: Answer

    def __init__(self, call: Call[Answer], policy: Policy) -> None:
        self._call = call
        self._policy = policy
        self._began = time.monotonic()
        self.until = self._began + policy.timeout
        self._error: FoveaClientError | None = None

    def __iter__(self) -> Iterator[tuple[float, httpx.Request]]:
        policy, wait = self._policy, 0.0
        given_up = self.until
        if (timeout_ms := self._call.request.timeout_ms) is not None:
            given_up = min(self.until, self._began + timeout_ms / 1e3)
        for attempt in count():
            yield wait, self._http_request(wait)
            if self._error is None:
                return
            again = attempt < policy.retries and self._may_repeat(self._error)
            chosen = wait_s(self._error, attempt) if again else None
            if chosen is None or time.monotonic() + chosen > given_up:
                raise self._error
            wait = chosen

    def received(self, response: httpx.Response) -> None:
        """Read a response, and keep its result or its error."""
        self._error = None
        try:
            self.answer = self._call.read(response)
        except FoveaClientError as error:
            self._error = error

    def failed(self, error: httpx.RequestError) -> None:
        """Keep the error of a request that got no response."""
        self._error = _translate_error(error, self._policy)

    def _may_repeat(self, error: FoveaClientError) -> bool:
        unanswered = isinstance(error, ConnectionFailed) and error.unanswered
        safe = self._call.request.method == "GET"
        return not unanswered or safe or self._policy.repeat_unanswered

    def _http_request(self, wait: float) -> httpx.Request:
        request, headers = (
            self._call.request,
            {**self._policy.headers, **self._call.request.headers},
        )
        if request.timeout_ms is not None:
            passed_ms = 1e3 * (time.monotonic() + wait - self._began)
            headers["x-request-timeout-ms"] = f"{request.timeout_ms - passed_ms:.3f}"
        return httpx.Request(
            request.method,
            self._policy.url + request.path,
            headers=headers,
            content=request.body,
            extensions={"timeout": _Left(self.until)},
        )


class _Left(dict[str, float]):
    """Timeouts for httpx. Each step of a request may take all the time left for the whole call."""

    def __init__(self, until: float) -> None:
        self._until = until
        super().__init__({step: self._left() for step in ("connect", "read", "write", "pool")})

    def get(self, step: str, default: object = None) -> Any:
        """Return the seconds left for the call. httpcore calls `get` at the start of each step."""
        return self._left()

    def _left(self) -> float:
        # Never return 0: httpcore treats 0 as non-blocking mode, and raises an error that is not a
        # timeout.
        return max(self._until - time.monotonic(), 0.001)


def wait_s(error: FoveaClientError, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt. If there must be no retry, return None.

    After a rejection (status 429 or 503) the wait is the server's Retry-After. After a failed
    connection the waits are 0.1, 0.2, 0.4 ... s. The function adds a random time of up to 25 % of
    the wait. Otherwise, clients that were rejected at the same time would retry at the same time.
    """
    match error:
        case ServerError(status=status, retry_after_s=float(seconds)) if status in _REFUSED:
            wait = seconds
        case ConnectionFailed():
            wait = FIRST_WAIT_S * 2.0**attempt
        case _:
            return None
    return wait * random.uniform(1.0, 1.25)


def _translate_error(error: httpx.RequestError, policy: Policy) -> FoveaClientError:
    url, unanswered = policy.url, not isinstance(error, _NOT_SENT)
    if isinstance(error, httpx.LocalProtocolError):
        return ConnectionFailed(f"the request to {url} cannot be sent ({error})")
    if isinstance(error, httpx.PoolTimeout):
        return ConnectionFailed(
            f"the request was not sent to {url}, because all connections of this client were in "
            f"use for {policy.timeout:g} s: send fewer requests at once, or raise timeout"
        )
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailed(
            f"{url} did not respond within {policy.timeout:g} s", unanswered=unanswered
        )
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConnectionFailed(
            f"the certificate of {url} is not trusted ({error}): set SSL_CERT_FILE to a PEM file "
            "with this certificate, or with the certificate of the authority that signed it"
        )
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
        return UnexpectedAnswer(
            f"the response of {url} is not HTTP ({error}): is this the gRPC port? By default, "
            "`fovea serve` uses port 8000 for HTTP and 8001 for gRPC"
        )
    if unanswered:
        # Typical errors of a TLS port that receives plain HTTP: it closes or resets the connection.
        broken = ("without sending a response", "reset by peer")
        tls = url.startswith("http:") and any(each in str(error) for each in broken)
        hint = "; if the server uses TLS, its URL must begin with https" if tls else ""
        return ConnectionFailed(
            f"the connection to {url} broke before the response arrived "
            f"({error or type(error).__name__}); the server may have executed the request{hint}",
            unanswered=True,
        )
    return ConnectionFailed(
        f"cannot connect to {url} ({error}): is a server running there? `fovea serve` starts one"
    )


def server_address(url: str) -> str:
    """Return the URL of a server with a scheme; "host:8000" becomes "http://host:8000".

    Raises:
        ValueError: `url` is not an http or https URL.
    """
    address = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a valid URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not a valid URL: use a URL such as http://127.0.0.1:8000")
    return address.rstrip("/")
