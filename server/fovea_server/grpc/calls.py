"""Handles gRPC calls: reads messages, reports errors, checks access, logs each call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, Self, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError, Message

from fovea_preprocess.errors import FoveaError, InvalidRequest, Restricted
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.error_status import grpc_status
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.grpc.arrivals import Arrivals
from fovea_server.log_lines import REQUEST_ID
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.client import CLIENT
from fovea_server.traffic.request_id import HEADER, request_id
from fovea_server.traffic.spans import SPAN, RequestSpan
from fovea_server.traffic.traffic import Traffic

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

Context: TypeAlias = grpc.aio.ServicerContext
Handler: TypeAlias = grpc.RpcMethodHandler

# Reading a request of this many bytes would block the event loop.
LARGE = 262_144
# Details are sent in a header, and clients limit its size.
_MOST_DETAILS = 2000
# Printable ASCII except "%" is sent unchanged, all else as three bytes for each byte of UTF-8.
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_SECRET = "triton-grpc-protocol-"
_PROBES = frozenset({"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"})


class Call:
    """Gives a call its id, ends it with its error, and logs and counts it.

    Attributes:
        status: name of the gRPC status.
        size: bytes of the answers.
        span: of a call that is traced; None for nearly all.
        message: the request; None until it is read, and for a stream.
        model: of the latest request of a stream; "" for none.
    """

    def __init__(self, method: str, context: Context, traffic: Traffic) -> None:
        self.status = "CANCELLED"
        self.size = 0
        self.message: object = None
        self.model = ""
        self._error: FoveaError | None = None
        self._controls = False
        self._needed: tuple[str, str] | None = None
        self._began = time.monotonic()
        self._method, self._context, self._traffic = method, context, traffic
        self._metadata = dict(context.invocation_metadata() or ())
        self._id = request_id(self._text(HEADER))
        REQUEST_ID.set(self._id)
        CLIENT.set(_address(context.peer()))
        self.span = self.traced() if method.endswith("/ModelInfer") else None
        context.set_trailing_metadata(((HEADER, self._id),))

    def traced(self) -> RequestSpan | None:
        """Begin the span of a request of this call, if it is traced, and set it for its task."""
        if (tracer := self._traffic.tracer) is None:
            return None
        span = tracer.begin(self._text("traceparent"), self._text("tracestate"))
        if span is not None:
            span.name, span.id = self._method.removeprefix("/"), self._id
            SPAN.set(span)
        return span

    def _text(self, name: str) -> str | None:
        value = self._metadata.get(name)
        return value if isinstance(value, str) else None

    def check(self, restrictions: Restrictions, api: str) -> None:
        """Raise Restricted if the call lacks the secret of an API."""
        key = restrictions.missing(api, self._secret)
        if key is not None:
            raise Restricted(f"This protocol is restricted, expecting header '{_SECRET}{key}'")

    def check_control(self, restrictions: Restrictions, api: str) -> None:
        """Raise Restricted if the client may not change the server by an API; the log has it."""
        self._controls, self._needed = True, restrictions.secret(api)
        restrictions.check_control(api, _address(self._context.peer()), self._text)

    def _secret(self, key: str) -> str | None:
        return self._text(f"{_SECRET}{key}".lower())

    async def write(self, message: bytes) -> None:
        """Send one message of a stream."""
        self.size += len(message)
        await self._context.write(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self.status = "OK"
            elif isinstance(error, grpc.aio.AbortError):
                # The client asked for its stream to end with its first error.
                self.status = str(self._context.code().name)
            elif isinstance(error, grpc.aio.InternalError):
                # The client has left during a write: there is no one to answer.
                raise asyncio.CancelledError from None
            elif isinstance(error, Exception):
                if not isinstance(error, FoveaError):
                    log.error("a call failed", exc_info=error)
                    error = fault()
                self._error, self.status = error, grpc_status(error)
                await refuse(self._context, error)
        finally:
            self._close()

    def _close(self) -> None:
        method = self._method.rpartition("/")[2]
        model = getattr(self.message, "model_name", self.model)
        if not model and method.startswith("Model"):
            model = getattr(self.message, "name", "")
        if method == "ModelInfer":
            self._traffic.inferred(model, self.status, self._began, self._error, self.span)
        client = _address(self._context.peer())
        if self._controls:
            what = f"{method} of {model!r}" if model else method
            self._traffic.controlled(client, self._needed, None, what, self.status)
        if self._traffic.access_log is None:
            return
        self._traffic.access_log.add(
            Access(
                client,
                method,
                self._method,
                model,
                self.status,
                self.size,
                self._began,
                self._id,
            ),
            probe=method in _PROBES,
        )


Stream = Callable[[AsyncIterator[bytes], Context, Call], Awaitable[None]]


def parse(message_type: type[M], data: bytes) -> M:
    """Parse a message, or raise InvalidRequest."""
    try:
        message: M = message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"the bytes of the request are no {name}") from None
    return message


def unary(
    name: str,
    api: str,
    read: Callable[[bytes], R],
    method: Callable[[R], Awaitable[bytes]],
    service: Service,
    arrivals: Arrivals,
    controls: Callable[[R], bool] | None = None,
) -> Handler:
    """Make the handler of a call with one request and one answer.

    `controls` tells if a request changes the server; None where none does.
    """
    budget = arrivals.budget

    async def answer(_: object, context: Context) -> bytes:
        async with Call(name, context, service.traffic) as call:
            call.check(service.grpc_restrictions, api)
            data = await arrivals.message(context)
            size = len(data)
            budget.take(size)
            try:
                message = read(data) if size < LARGE else await asyncio.to_thread(read, data)
                call.message = message
                if controls is not None and controls(message):
                    call.check_control(service.grpc_restrictions, api)
                found = await method(message)
            finally:
                budget.give_back(size)
            if (size := len(found)) >= LARGE:
                # Counted until it is sent, or the client has left.
                unsent = Reservation(budget)
                unsent.resize(size)
                context.add_done_callback(lambda _: unsent.release())
            call.size = size
            return found

    # gRPC's own handler of unary calls would wait for the message without a limit of time.
    return grpc.stream_unary_rpc_method_handler(answer)


def stream(name: str, api: str, method: Stream, service: Service, arrivals: Arrivals) -> Handler:
    """Make the handler of a call with many requests and many answers."""

    async def answer(requests: AsyncIterator[bytes], context: Context) -> None:
        async with Call(name, context, service.traffic) as call:
            call.check(service.grpc_restrictions, api)
            peer = context.peer()
            with arrivals.stream(peer) as reader:
                await method(arrivals.messages(requests, peer, reader), context, call)
            if reader.error is not None:
                raise reader.error

    return grpc.stream_stream_rpc_method_handler(answer)


async def refuse(context: Context, error: FoveaError) -> NoReturn:
    """End a call with an expected error."""
    await context.abort(grpc.StatusCode[grpc_status(error)], _cut(str(error)))
    raise AssertionError("abort raises")


def fault() -> FoveaError:
    """Make the answer to an internal error; the traceback is only in the log."""
    return FoveaError("an internal error; the server's log has the details")


def _cut(details: str) -> str:
    """Cut details to the size of the header."""
    if 12 * len(details) <= _MOST_DETAILS:
        return details
    encoded = quote(details, safe=_AS_IT_IS, errors="replace")[:_MOST_DETAILS]
    # Drop a character that was cut.
    return unquote(encoded.rstrip("%"), errors="ignore")


def _address(peer: str) -> str:
    """Extract the address from `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]") or "-"
