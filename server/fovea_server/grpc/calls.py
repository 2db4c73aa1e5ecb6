"""Calls: how their messages are read and their errors told, and who may make them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError

from fovea_preprocess.errors import FoveaError, InvalidRequest, Restricted
from fovea_server.byte_budget import ByteBudget
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.grpc.call import Call, Context
from fovea_server.status import grpc_status
from fovea_server.traffic.traffic import Traffic

log = logging.getLogger(__name__)

Handler: TypeAlias = grpc.RpcMethodHandler
Unary = Callable[[Any], Awaitable[Any]]
Stream = Callable[[AsyncIterator[bytes], Context, Call], Awaitable[None]]
Guard = Callable[[Context], None]

# Bytes from which a request takes longer to read than the event loop should stand still.
LARGE = 262_144
# Details travel in a header, and clients take only so many bytes of those.
_MOST_DETAILS = 2000
# Nearly all printable characters travel as they are, all else as three bytes a byte of UTF-8.
_AS_IT_IS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_SECRET = "triton-grpc-protocol-"


def parse(message_type: Any, data: bytes) -> Any:
    """A message of a type.

    Raises:
        InvalidRequest: the bytes are none.
    """
    try:
        return message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"the bytes of the request are no {name}") from None


def guard(restrictions: Restrictions, api: str) -> Guard:
    """What lets through only those calls of an API that carry its secret."""
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
    method: Unary,
    read: Callable[[bytes], Any],
    admit: Guard,
    budget: ByteBudget,
    traffic: Traffic,
) -> Handler:
    """A call with one request and one answer.

    Args:
        name: of the call, with its service.
        method: takes what was read and gives a message, or its bytes.
        read: makes sense of the bytes of a request.
        admit: raises for calls that may not be made.
        budget: counts the bytes of requests, and of large answers until they are sent.
        traffic: hears of each call.
    """

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
            encoded: bytes = found if type(found) is bytes else found.SerializeToString()
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
    """A call with many requests and many answers.

    Args:
        name: of the call, with its service.
        method: reads and writes them, as bytes.
        admit: raises for calls that may not be made.
        traffic: hears of each call.
    """

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
            # The client has left while it was written to; there is nobody to tell.
            raise asyncio.CancelledError from None
        except Exception:
            log.exception("a stream failed")
            call.fail(fault())
            await refuse(context, fault())
        finally:
            call.close()

    return grpc.stream_stream_rpc_method_handler(answer)


async def refuse(context: Context, error: FoveaError) -> NoReturn:
    """End a call with an error that somebody has raised on purpose."""
    await context.abort(grpc.StatusCode[grpc_status(error)], _cut(str(error)))
    raise AssertionError("abort raises")


def fault() -> FoveaError:
    """What is told of an error of ours; the log has the traceback, which is nobody else's."""
    return FoveaError("an internal error; the server's log has the details")


def _hold(budget: ByteBudget, size: int, context: Context) -> None:
    """Count an answer until the client has it, or has left."""
    budget.take(size)
    context.add_done_callback(lambda _: budget.give_back(size))


def _cut(details: str) -> str:
    """As much of it as there is room for."""
    if 12 * len(details) <= _MOST_DETAILS:
        return details
    encoded = quote(details, safe=_AS_IT_IS, errors="replace")[:_MOST_DETAILS]
    # What was cut within a character is no character.
    return unquote(encoded.rstrip("%"), errors="ignore")


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None
