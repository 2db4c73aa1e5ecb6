"""A stream of gRPC without a connection."""

import asyncio

import grpc
import pytest

from fovea_cluster.ray.rpc import RpcContext, streamed


async def _requests():
    yield b"request"


def test_a_stream_that_is_left_leaves_no_task():
    async def answer(requests, context):
        while True:
            await context.write(b"answer")

    async def leave() -> None:
        handler = grpc.stream_stream_rpc_method_handler(answer)
        answers = streamed(handler, _requests(), RpcContext((), ""))
        assert await anext(answers) == b"answer"
        # It now waits to write the next one.
        await asyncio.sleep(0.01)
        await answers.aclose()
        async with asyncio.timeout(5):
            while asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.sleep(0.01)

    asyncio.run(leave())


def test_a_fault_ends_a_stream():
    async def answer(requests, context):
        await context.write(b"answer")
        raise LookupError

    async def read() -> list[bytes]:
        handler = grpc.stream_stream_rpc_method_handler(answer)
        return [each async for each in streamed(handler, _requests(), RpcContext((), ""))]

    with pytest.raises(LookupError):
        asyncio.run(read())
