"""Handles gRPC calls: receives messages, checks access, returns errors, logs each call."""

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

# Size in bytes. Larger requests are parsed outside the event loop. Larger responses are counted in
# the memory budget until they are sent.
LARGE = 262_144
# Largest size in bytes of an error text. gRPC sends it in a header, whose size clients limit.
_MAX_DETAILS = 2000
# Characters that gRPC sends unchanged: printable ASCII except "%". gRPC encodes each other byte of
# the UTF-8 text as three bytes.
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def call_of(method: str, context: Context, traffic: Traffic) -> Call:
    """Create the `Call` of an RPC from its metadata. `method` is the full name of the RPC."""
    metadata = dict(context.invocation_metadata() or ())

    def header(name: str) -> str | None:
        value = metadata.get(name.lower())
        return value if isinstance(value, str) else None

    name, client = method.rpartition("/")[2], _address(context.peer())
    return Call(traffic, name, method, client, header, is_rpc=True)


class Rpc:
    """Runs one gRPC call: gives it an ID, checks access, and ends it with its status.

    Attributes:
        call: part of the call that does not depend on the transport; the log and the metrics use
            it.
        size: total number of bytes of the responses.
        message: parsed request; None for a stream, and before the request is parsed.
    """

    def __init__(self, method: str, context: Context, traffic: Traffic) -> None:
        self.size = 0
        self.message: object = None
        self._context = context
        self.call = call_of(method, context, traffic)
        context.set_trailing_metadata(((REQUEST_ID_HEADER, self.call.id),))

    def begin(self, service: Service, api: str, operation: str = "") -> None:
        """Check access with `Authenticator.admit`, and make this the current call of the task."""
        try:
            service.authenticator.admit(self.call, api, operation=operation)
        finally:
            self.call.enter()

    def take(self, message: object) -> None:
        """Store the parsed request.

        Raises:
            Forbidden: the API key of the call does not allow the model of the request.
        """
        self.message = message
        self.call.model = self._model
        if self.call.principal is not None and not self.call.probe:
            self.call.principal.check_model(self.call.model)

    def check_control(self, service: Service, api: str) -> None:
        """Check that the client may change the server by this request.

        Raises:
            Restricted: the client is on another machine, or did not send the secret of the API.
            Unauthenticated: the call has no valid API key.
            Forbidden: the API key does not allow the change.
        """
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
                # The client has requested that the first error ends its stream.
                status = str(self._context.code().name)
            elif isinstance(error, grpc.aio.BaseError) and not isinstance(
                error, grpc.aio.UsageError
            ):
                # The client disconnected during a write, or the server stopped during a read. No
                # response can be sent.
                raise asyncio.CancelledError from None
            elif isinstance(error, Exception):
                if not isinstance(error, FoveaError):
                    log.error("a call failed", exc_info=error)
                    error = fault()
                answered, status = error, grpc_status(error)
                self.call.model, self.message = self._model, None
                # An aborted call and its error refer to each other. Without these two lines, the
                # message would stay in memory until the next garbage collection.
                error.__traceback__ = None
                del traceback
                await refuse(self._context, error)
        finally:
            self.call.model = self._model
            self.call.end(status, self.size, answered)


Stream = Callable[[AsyncIterator[bytes], Context, Rpc], Awaitable[None]]


def parse(message_type: type[M], data: bytes) -> M:
    """Parse a message.

    Raises:
        InvalidRequest: the bytes are not a message of this type.
    """
    try:
        message: M = message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"the request is not a {name} message") from None
    return message


def parse_short(message_type: type[M], data: bytes) -> M:
    """Parse a message of at most `LARGE` bytes.

    protobuf would take seconds to parse the parameters of a long message on the event loop.

    Raises:
        InvalidRequest: the message is too long, or the bytes are not a message of this type.
    """
    if len(data) > LARGE:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(
            f"the {name} message has {len(data)} bytes, but at most {LARGE} are allowed"
        )
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
    """Make the handler of a call with one request and one response.

    Args:
        name: full name of the RPC, with a leading slash.
        api: name of the API for `Authenticator.admit`.
        read: function that parses a request.
        method: function that returns the response to a parsed request.
        service: service with the authenticator, the metrics and the memory budget.
        arrivals: object that receives the messages.
        changes: True if requests change the server, False if not, or a function that returns this
            for a request.
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
                # If `changes` is a function, the server cannot decide whether this rejected call
                # would have changed it: the request was not parsed.
                if changes is True:
                    rpc.call.controls(rpc.call.method, None)
                raise
            found = await receive_and_answer(context, rpc)
            if (size := len(found)) >= LARGE:
                # Count the response in the budget until it is sent or the client has disconnected.
                unsent = Reservation(budget)
                unsent.resize(size)
                context.add_done_callback(lambda _: unsent.release())
            rpc.size = size
            return found

    # Handle a unary call as a stream, because gRPC's handler for unary calls waits for the message
    # without a timeout.
    return grpc.stream_unary_rpc_method_handler(answer)


def stream(name: str, api: str, method: Stream, service: Service, arrivals: Arrivals) -> Handler:
    """Make the handler of a call with a stream of requests and a stream of responses."""

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
    """End a call with the status and the text of an error."""
    await context.abort(grpc.StatusCode[grpc_status(error)], _cut(str(error)))
    raise AssertionError("abort raises")


def fault() -> FoveaError:
    """Return the error for a failure inside the server. Only the log contains the traceback."""
    return FoveaError("an internal error; the server's log has the details")


def _cut(details: str) -> str:
    """Shorten an error text so that it fits into the header in which gRPC sends it."""
    if 12 * len(details) <= _MAX_DETAILS:
        return details
    encoded = quote(details, safe=_AS_IT_IS, errors="replace")[:_MAX_DETAILS]
    # Remove the last character if the cut made it incomplete.
    return unquote(encoded.rstrip("%"), errors="ignore")


def _address(peer: str) -> str | None:
    """Return the address in a peer name such as `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`.

    If the peer name contains no IP address, return None.
    """
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]") or None
