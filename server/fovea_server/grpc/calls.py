"""Handles gRPC calls: reads messages, reports errors, checks access, logs each call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError, Message

from fovea_preprocess.errors import FoveaError, InvalidRequest, Restricted
from fovea_server.byte_budget import ByteBudget
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.log_lines import REQUEST_ID
from fovea_server.status import grpc_status
from fovea_server.traffic.access_log import Access
from fovea_server.traffic.request_id import HEADER, request_id
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
    """Gives a call its id, which is sent in the trailing metadata.

    Attributes:
        status: name of the gRPC status.
        error: the error it answers with, if any.
        size: bytes of the answers.
        model: of the request, the latest of a stream; "" for none.
    """

    def __init__(self, method: str, context: Context, traffic: Traffic) -> None:
        self.status = "CANCELLED"
        self.error: FoveaError | None = None
        self.size = 0
        self.model = ""
        self._began = time.monotonic()
        self._method, self._context, self._traffic = method, context, traffic
        given = dict(context.invocation_metadata() or ()).get(HEADER)
        self._id = request_id(given if isinstance(given, str) else None)
        REQUEST_ID.set(self._id)
        context.set_trailing_metadata(((HEADER, self._id),))

    def fail(self, error: FoveaError) -> None:
        """Set the error that it ends with."""
        self.error, self.status = error, grpc_status(error)

    async def write(self, message: bytes) -> None:
        """Send one message of a stream."""
        self.size += len(message)
        await self._context.write(message)

    def close(self, message: object = None) -> None:
        """Log and count the call; `message` is its request, None if it could not be read."""
        method = self._method.rpartition("/")[2]
        model = getattr(message, "model_name", self.model)
        if not model and method.startswith("Model"):
            model = getattr(message, "name", "")
        if method == "ModelInfer":
            self._traffic.inferred(model, self.status, self._began, self.error)
        if self._traffic.access_log is None:
            return
        self._traffic.access_log.add(
            Access(
                _address(self._context.peer()),
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
Guard = Callable[[Context], None]


def parse(message_type: type[M], data: bytes) -> M:
    """Parse a message.

    Raises:
        InvalidRequest: the bytes are not such a message.
    """
    try:
        message: M = message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"the bytes of the request are no {name}") from None
    return message


def guard(restrictions: Restrictions, api: str) -> Guard:
    """Make a guard that refuses calls of an API without its secret."""
    if restrictions.missing(api, lambda key: None) is None:
        return lambda context: None

    def check(context: Context) -> None:
        given = dict(context.invocation_metadata() or ())
        key = restrictions.missing(api, lambda key: _text(given.get(f"{_SECRET}{key}".lower())))
        if key is not None:
            raise Restricted(f"This protocol is restricted, expecting header '{_SECRET}{key}'")

    return check


def unary(
    name: str,
    method: Callable[[R], Awaitable[Message | bytes]],
    read: Callable[[bytes], R],
    admit: Guard,
    budget: ByteBudget,
    traffic: Traffic,
) -> Handler:
    """Make the handler of a call with one request and one answer."""

    async def answer(data: bytes, context: Context) -> bytes:
        call = Call(name, context, traffic)
        message, held = None, 0
        try:
            admit(context)
            budget.take(len(data))
            held = len(data)
            message = read(data) if held < LARGE else await asyncio.to_thread(read, data)
            found = await method(message)
            budget.give_back(held)
            held = 0
            encoded = found if isinstance(found, bytes) else found.SerializeToString()
            if len(encoded) >= LARGE:
                _hold(budget, len(encoded), context)
            call.status, call.size = "OK", len(encoded)
            return encoded
        except FoveaError as error:
            call.fail(error)
            await refuse(context, error)
        except Exception:
            log.exception("a call failed")
            call.fail(fault())
            await refuse(context, fault())
        finally:
            budget.give_back(held)
            call.close(message)

    return grpc.unary_unary_rpc_method_handler(answer)


def stream(name: str, method: Stream, admit: Guard, traffic: Traffic) -> Handler:
    """Make the handler of a call with many requests and many answers."""

    async def answer(requests: AsyncIterator[bytes], context: Context) -> None:
        call = Call(name, context, traffic)
        try:
            admit(context)
            await method(requests, context, call)
            call.status = "OK"
        except FoveaError as error:
            call.fail(error)
            await refuse(context, error)
        except grpc.aio.AbortError:
            # The client asked for its stream to end with its first error.
            call.status = str(context.code().name)
            raise
        except grpc.aio.InternalError:
            # The client has left during a write: there is no one to answer.
            raise asyncio.CancelledError from None
        except Exception:
            log.exception("a stream failed")
            call.fail(fault())
            await refuse(context, fault())
        finally:
            call.close()

    return grpc.stream_stream_rpc_method_handler(answer)


async def refuse(context: Context, error: FoveaError) -> NoReturn:
    """End a call with an expected error."""
    await context.abort(grpc.StatusCode[grpc_status(error)], _cut(str(error)))
    raise AssertionError("abort raises")


def fault() -> FoveaError:
    """Make the answer to an internal error; the traceback is only in the log."""
    return FoveaError("an internal error; the server's log has the details")


def _hold(budget: ByteBudget, size: int, context: Context) -> None:
    """Count an answer until it is sent, or the client has left."""
    budget.take(size)
    context.add_done_callback(lambda _: budget.give_back(size))


def _cut(details: str) -> str:
    """Cut details to the size of the header."""
    if 12 * len(details) <= _MOST_DETAILS:
        return details
    encoded = quote(details, safe=_AS_IT_IS, errors="replace")[:_MOST_DETAILS]
    # Drop a character that was cut.
    return unquote(encoded.rstrip("%"), errors="ignore")


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None


def _address(peer: str) -> str:
    """Extract the address from `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]") or "-"
