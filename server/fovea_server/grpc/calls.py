"""Calls: how their messages are read and their errors told, and who may make them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from fovea_preprocess.errors import FoveaError, InvalidRequest, Restricted
from fovea_server.status import grpc_status
from fovea_server.v2.restrictions import Restrictions

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext
Handler: TypeAlias = grpc.RpcMethodHandler
Unary = Callable[[Any], Awaitable[Any]]
Stream = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]
Guard = Callable[[Context], None]

# Details travel in a header, and clients take only so much of those.
_MOST_DETAILS = 2000
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


def unary(method: Unary, read: Callable[[bytes], Any], admit: Guard) -> Handler:
    """A call with one request and one answer.

    Args:
        method: takes what was read and gives a message, or its bytes.
        read: makes sense of the bytes of a request.
        admit: raises for calls that may not be made.
    """

    async def answer(data: bytes, context: Context) -> bytes:
        try:
            admit(context)
            found = await method(read(data))
            return found if type(found) is bytes else found.SerializeToString()
        except FoveaError as error:
            await refuse(context, error)
        except Exception:
            log.exception("a call failed")
            await refuse(context, fault())

    return grpc.unary_unary_rpc_method_handler(answer)


def stream(method: Stream, admit: Guard) -> Handler:
    """A call with many requests and many answers.

    Args:
        method: reads and writes them, as bytes.
        admit: raises for calls that may not be made.
    """

    async def answer(requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            admit(context)
            await method(requests, context)
        except FoveaError as error:
            await refuse(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception:
            log.exception("a stream failed")
            await refuse(context, fault())

    return grpc.stream_stream_rpc_method_handler(answer)


async def refuse(context: Context, error: FoveaError) -> NoReturn:
    """End a call with an error that somebody has raised on purpose."""
    await context.abort(grpc.StatusCode[grpc_status(error)], str(error)[:_MOST_DETAILS])
    raise AssertionError("abort raises")


def fault() -> FoveaError:
    """What is told of an error of ours; the log has the traceback, which is nobody else's."""
    return FoveaError("an internal error; the server's log has the details")


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None
