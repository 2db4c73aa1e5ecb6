"""Streams and messages that arrive: what is held of them is bounded, and each ends once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fovea_preprocess.errors import BodyTimeout
from fovea_server.byte_budget import ByteBudget, Reservation
from fovea_server.grpc.arrivals import Reader, _stop
from fovea_server.grpc.calls import Rpc
from fovea_server.grpc.inference import InferStream, StreamedAnswer
from fovea_server.traffic.traffic import Traffic

MB = 1 << 20


class Unread:
    """A call of a client that reads nothing."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()


async def echo(data: bytes, reservation: Reservation) -> StreamedAnswer:
    return StreamedAnswer("", data, "")


async def streamed(
    most: int, budget: ByteBudget, requests: AsyncIterator[bytes], client: Unread, answer=echo
):
    traffic = Traffic((), log_access=False)
    rpc = Rpc("/inference.GRPCInferenceService/ModelStreamInfer", client, traffic)
    await InferStream(answer, most, budget).run(requests, client, rpc)


@pytest.mark.parametrize(
    ("size", "most", "taken"),
    [(8 * MB, 256, 8), (1, 3, 3), (100 * MB, 256, 1)],
)
def test_no_more_is_read_than_there_is_room_for(size: int, most: int, taken: int):
    sent = 0
    budget = ByteBudget(200 * MB)

    async def requests() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(20):
            sent += 1
            yield bytes(size)

    async def run() -> None:
        running = asyncio.create_task(streamed(most, budget, requests(), Unread()))
        for _ in range(1000):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    # One more has come, and waits to be taken.
    assert sent == taken + 1
    budget.take(1)
    budget.take(200 * MB - 1)


def test_a_stream_that_is_cancelled_ends_all_that_it_began():
    begun: list[bytes] = []
    ended: list[bytes] = []

    async def slowly(data: bytes, reservation: Reservation) -> StreamedAnswer:
        begun.append(data)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(data)

    async def requests() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number])
        await asyncio.Event().wait()

    async def run() -> None:
        client = Unread()
        running = asyncio.create_task(streamed(9, ByteBudget(MB), requests(), client, slowly))
        async with asyncio.timeout(60):
            while len(begun) < 3:
                await asyncio.sleep(0)
            running.cancel()
            while len(ended) < 3:
                await asyncio.sleep(0)

    asyncio.run(run())
    assert sorted(ended) == sorted(begun) == [b"\0", b"\1", b"\2"]


def test_what_is_read_makes_room():
    written: list[bytes] = []

    class Read(Unread):
        async def write(self, data: bytes) -> None:
            written.append(data)

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield bytes(40 * MB)

    asyncio.run(streamed(2, ByteBudget(1000 * MB), requests(), Read()))
    assert len(written) == 5


def test_a_call_whose_own_limit_has_just_ended_it_is_stopped_only_once():
    async def run() -> Reader:
        reader, loop = Reader(), asyncio.get_running_loop()
        now = loop.time()
        try:
            async with asyncio.timeout_at(now) as reader.timeout:
                # Both are due in the same turn of the loop, before this task runs again.
                loop.call_at(now + 1e-6, _stop, [reader], BodyTimeout("too slow"))
                await asyncio.sleep(60)
        except TimeoutError:
            return reader
        raise AssertionError("it has a limit")

    failed: list[object] = []

    async def watched() -> Reader:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        return await run()

    assert asyncio.run(watched()).error is None
    assert not failed
