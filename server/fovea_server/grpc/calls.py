"""Handlers of gRPC calls: reading messages, reporting errors, checking access."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError, Message

from fovea_preprocess.errors import FoveaError, InvalidRequest, Restricted
from fovea_server.byte_budget import ByteBudget
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.grpc.call import Call, Context
from fovea_server.status import grpc_status
from fovea_server.traffic.traffic import Traffic

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

Handler: TypeAlias = grpc.RpcMethodHandler
Stream = Callable[[AsyncIterator[bytes], Context, Call], Awaitable[None]]
Guard = Callable[[Context], None]

# Reading a request of this many bytes would block the event loop.
LARGE = 262_144
# Details are sent in a header, and clients limit its size.
_MOST_DETAILS = 2000
# Printable ASCII except "%" is sent unchanged, all else as three bytes for each byte of UTF-8.
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_SECRET = "triton-grpc-protocol-"


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
