"""Handles gRPC calls: reads messages, reports errors, checks access, logs each call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import NoReturn, Self, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError, Message

from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.error_status import grpc_status
from fovea_server.grpc.arrivals import Arrivals
from fovea_server.traffic.call import REQUEST_ID_HEADER, Call
from fovea_server.traffic.traffic import Traffic

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

Context: TypeAlias = grpc.aio.ServicerContext
Handler: TypeAlias = grpc.RpcMethodHandler

# Reading a request of this many bytes would block the event loop.
LARGE = 262_144
# Details are sent in a header, and clients limit its size.
_MAX_DETAILS = 2000
# Printable ASCII except "%" is sent unchanged, all else as three bytes for each byte of UTF-8.
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def call_of(method: str, context: Context, traffic: Traffic) -> Call:
    """Make the call of an RPC from its metadata; `method` is the full name."""
    metadata = dict(context.invocation_metadata() or ())

    def header(name: str) -> str | None:
        value = metadata.get(name.lower())
        return value if isinstance(value, str) else None

    name, client = method.rpartition("/")[2], _address(context.peer())
    return Call(traffic, name, method, client, header, is_rpc=True)


class Rpc:
    """Carries a call of gRPC: gives it its id, and ends it with its error.

    Attributes:
        call: what all carriers know of it.
        size: bytes of the answers.
        message: the request; None until it is read, and for a stream.
    """

    def __init__(self, method: str, context: Context, traffic: Traffic) -> None:
        self.size = 0
        self.message: object = None
        self._context = context
        self.call = call_of(method, context, traffic)
        context.set_trailing_metadata(((REQUEST_ID_HEADER, self.call.id),))

    def begin(self, service: Service, api: str, operation: str = "") -> None:
        """Admit the call, as `Authenticator.admit` does, and let its task know of it."""
        try:
            service.authenticator.admit(self.call, api, operation=operation)
        finally:
            self.call.enter()

    def take(self, message: object) -> None:
        """Take the request; Forbidden if the key of the call is not for its model."""
        self.message = message
        self.call.model = self._model
        if self.call.principal is not None and not self.call.probe:
            self.call.principal.check_model(self.call.model)

    def check_control(self, service: Service, api: str) -> None:
        """Raise Restricted if the client may not change the server by this request."""
        call, model = self.call, self._model
        what = f"{call.method} of {model!r}" if model else call.method
        service.authenticator.admit(call, api, control=what)

    @property
    def _model(self) -> str:
        name: str = getattr(self.message, "model_name", self.call.model)
        if not name and self.call.method.startswith("Model"):
            name = getattr(self.message, "name", "")
        return name

    async def write(self, message: bytes) -> None:
        """Send one message of a stream."""
        self.size += len(message)
        await self._context.write(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status, answered = "CANCELLED", None
        try:
            if error is None:
                status = "OK"
            elif isinstance(error, grpc.aio.AbortError):
                # The client requested that its stream end with its first error.
                status = str(self._context.code().name)
            elif isinstance(error, grpc.aio.BaseError) and not isinstance(
                error, grpc.aio.UsageError
            ):
                # The client has left during a write, or the server stopped during a read: there is
                # no one to answer.
                raise asyncio.CancelledError from None
            elif isinstance(error, Exception):
                if not isinstance(error, FoveaError):
                    log.error("a call failed", exc_info=error)
                    error = fault()
                answered, status = error, grpc_status(error)
                self.call.model, self.message = self._model, None
                # A call that is aborted refers to its error, and the error to it: the message would
                # stay in memory until the garbage collector comes by.
                error.__traceback__ = None
                del traceback
                await refuse(self._context, error)
        finally:
            self.call.model = self._model
            self.call.end(status, self.size, answered)


Stream = Callable[[AsyncIterator[bytes], Context, Rpc], Awaitable[None]]


def parse(message_type: type[M], data: bytes) -> M:
    """Parse a message, or raise InvalidRequest."""
    try:
        message: M = message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"the bytes of the request are no {name}") from None
    return message


def parse_short(message_type: type[M], data: bytes) -> M:
    """Parse a message that no honest client makes long, or raise InvalidRequest.

    Of a long one, protobuf would take seconds for its parameters, and nothing else runs meanwhile.
    """
    if len(data) > LARGE:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"a {name} has at most {LARGE} bytes, and this one has {len(data)}")
    return parse(message_type, data)


def unary(
    name: str,
    api: str,
    read: Callable[[bytes], R],
    method: Callable[[R], Awaitable[bytes]],
    service: Service,
    arrivals: Arrivals,
    changes: Callable[[R], bool] | bool = False,
) -> Handler:
    """Make the handler of a call with one request and one answer.

    `changes` tells if a request changes the server; True where every one does.
    """
    budget = arrivals.budget

    async def receive_and_answer(context: Context, rpc: Rpc) -> bytes:
        data = await arrivals.message(context)
        size = len(data)
        budget.take(size)
        try:
            message = read(data) if size < LARGE else await asyncio.to_thread(read, data)
            rpc.take(message)
            if changes(message) if callable(changes) else changes:
                rpc.check_control(service, api)
            return await method(message)
        finally:
            budget.give_back(size)

    async def answer(_: object, context: Context) -> bytes:
        async with Rpc(name, context, service.traffic) as rpc:
            operation = name.removeprefix("/") if api == "inference" else ""
            try:
                rpc.begin(service, api, operation)
            except FoveaError:
                # What else it is for is not known: it may only ask for settings.
                if changes is True:
                    rpc.call.controls(rpc.call.method, None)
                raise
            found = await receive_and_answer(context, rpc)
            if (size := len(found)) >= LARGE:
                # Counted until it is sent, or the client has left.
                unsent = Reservation(budget)
                unsent.resize(size)
                context.add_done_callback(lambda _: unsent.release())
            rpc.size = size
            return found

    # gRPC's own handler of unary calls would wait for the message without a limit of time.
    return grpc.stream_unary_rpc_method_handler(answer)


def stream(name: str, api: str, method: Stream, service: Service, arrivals: Arrivals) -> Handler:
    """Make the handler of a call with many requests and many answers."""

    async def answer(requests: AsyncIterator[bytes], context: Context) -> None:
        async with Rpc(name, context, service.traffic) as rpc:
            rpc.begin(service, api)
            peer = context.peer()
            with arrivals.stream(peer) as reader:
                await method(arrivals.messages(requests, peer, reader), context, rpc)
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
    if 12 * len(details) <= _MAX_DETAILS:
        return details
    encoded = quote(details, safe=_AS_IT_IS, errors="replace")[:_MAX_DETAILS]
    # Drop a character that was cut.
    return unquote(encoded.rstrip("%"), errors="ignore")


def _address(peer: str) -> str | None:
    """Extract the address from `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]") or None
