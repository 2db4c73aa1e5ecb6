"""Tests that retrying the request, and how often, when its replica is lost."""

import asyncio

import pytest

pytest.importorskip("ray")
from tests.server.ray.servers import Handle, forwarder

from fovea_preprocess.errors import ModelNotReady, Unavailable
from fovea_server.ray import forwarder as module
from fovea_server.ray.link import Link, ReplicaLost

pytestmark = pytest.mark.cluster

ABOUT = {"host": "127.0.0.1", "http": 1, "grpc": 1, "token": ""}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "_SHUN_S", 0.01)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)


def asked(losses: list[ReplicaLost], *, replicas: int = 2, keeps_state: bool = False):
    """Return the answer, and the replicas that were asked; each loses one request of `losses`."""
    tried: list[Link] = []

    async def send(link: Link) -> str:
        tried.append(link)
        if len(tried) <= len(losses):
            raise losses[len(tried) - 1]
        return "answer"

    async def run() -> object:
        way = forwarder(Handle(), keeps_state=keeps_state)
        way.update({str(number): ABOUT for number in range(replicas)})
        try:
            return await way.ask(send)
        except Unavailable as failed:
            return failed

    return asyncio.run(run()), tried


SENT, UNSENT = ReplicaLost(sent=True), ReplicaLost(sent=False)


@pytest.mark.parametrize(
    ("losses", "given", "answered", "times"),
    [
        ([SENT], {}, True, 2),
        # A request that kills replicas kills two.
        ([SENT] * 5, {"replicas": 5}, False, 2),
        # Replicas out of reach are tried until one is there.
        ([UNSENT] * 7, {}, True, 8),
        # A request of a sequence is sent once.
        ([SENT], {"keeps_state": True}, False, 1),
        ([UNSENT], {"keeps_state": True}, True, 2),
    ],
)
def test_a_request_is_sent_again_when_its_replica_is_lost(losses, given, answered, times):
    answer, tried = asked(losses, **given)
    assert (answer == "answer") == answered
    assert answered or isinstance(answer, Unavailable)
    assert len(tried) == times
    assert tried[1:2] != tried[:1]


def test_the_replica_with_the_fewest_requests_is_asked():
    async def run() -> None:
        way, free, tried = forwarder(Handle()), asyncio.Event(), []

        async def send(link: Link) -> None:
            tried.append(link)
            await free.wait()

        way.update({"1": ABOUT, "2": ABOUT, "3": ABOUT})
        asking = [asyncio.create_task(way.ask(send)) for _ in range(6)]
        await asyncio.sleep(0)
        assert {tried.count(link) for link in tried} == {2}
        free.set()
        await asyncio.gather(*asking)

    asyncio.run(run())


def test_a_request_that_waits_ends_when_no_replica_can_start():
    async def run() -> None:
        handle = Handle()
        way = forwarder(handle)

        async def send(link: Link) -> None:
            raise AssertionError("there is no replica")

        waiting = asyncio.create_task(way.ask(send))
        await asyncio.sleep(0.05)
        assert handle.woken == 1
        way.fault = "no engine"
        with pytest.raises(ModelNotReady):
            await waiting

    asyncio.run(run())


def test_a_replica_that_closes_the_connection_is_lost():
    async def run() -> None:
        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(close, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = Link({**ABOUT, "http": port})
        with pytest.raises(ReplicaLost) as lost:
            await link.http(b"POST / HTTP/1.1\r\ncontent-length: 1\r\n", b"x")
        assert lost.value.sent
        server.close()
        await server.wait_closed()
        with pytest.raises(ReplicaLost) as lost:
            await link.http(b"POST / HTTP/1.1\r\ncontent-length: 1\r\n", b"x")
        assert not lost.value.sent

    asyncio.run(run())
