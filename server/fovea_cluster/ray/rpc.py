"""Calls of gRPC without a connection: what they carry, and their context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, NoReturn

import grpc

from fovea_server.grpc.calls import Handler

Metadata = Sequence[tuple[str, str | bytes]]


class RpcAnswer(NamedTuple):
    """The answer to a call; `status` is the name of a `grpc.StatusCode`."""

    data: bytes
    status: str = "OK"
    details: str = ""
    trailing: tuple[tuple[str, str], ...] = ()


class RpcContext:
    """The operations of `grpc.aio.ServicerContext` that the handlers use."""

    def __init__(self, metadata: Metadata, peer: str, message: bytes = b"") -> None:
        self._message = message
        self._metadata, self._peer = metadata, peer
        self._status, self._details = grpc.StatusCode.OK, ""
        self._trailing: tuple[tuple[str, str], ...] = ()
        self._callbacks: list[Callable[[RpcContext], None]] = []
        self.written: asyncio.Queue[bytes | None] = asyncio.Queue(1)

    def invocation_metadata(self) -> Metadata:
        """Return what the client sent."""
        return self._metadata

    def peer(self) -> str:
        """Return the client's address, as gRPC writes it."""
        return self._peer

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._status

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Send this after the answer."""
        self._trailing = metadata

    def add_done_callback(self, callback: Callable[[RpcContext], None]) -> None:
        """Call a function when the call is over."""
        self._callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call with an error."""
        self._status, self._details = code, details
        raise grpc.aio.AbortError

    async def read(self) -> bytes:
        """Return the message of a unary call."""
        return self._message

    async def write(self, message: bytes) -> None:
        """Send a message of a stream."""
        await self.written.put(message)

    def answer(self, data: bytes) -> RpcAnswer:
        """Make the answer, now that the call is over."""
        for callback in self._callbacks:
            callback(self)
        return RpcAnswer(data, self._status.name, self._details, self._trailing)


async def called(handler: Handler, context: RpcContext) -> RpcAnswer:
    """Call the handler of a unary method; the context has its message."""
    try:
        found = await handler.stream_unary(None, context)
    except grpc.aio.AbortError:
        found = b""
    return context.answer(found)


async def streamed(
    handler: Handler, requests: AsyncIterator[bytes], context: RpcContext
) -> AsyncIterator[bytes]:
    """Call the handler of a method with many requests, and yield its answers."""
    reading = True

    async def run() -> None:
        try:
            await handler.stream_stream(requests, context)
        except grpc.aio.AbortError:
            pass
        finally:
            # Nobody takes the end out of a queue that is not read any more.
            if reading:
                await context.written.put(None)

    running = asyncio.create_task(run())
    try:
        while (message := await context.written.get()) is not None:
            yield message
        await running
    finally:
        reading = False
        running.cancel()
        context.answer(b"")
