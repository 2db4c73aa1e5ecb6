"""Tests that a request is sent again, and how often, when its replica is lost."""

import asyncio
import gc

import pytest

pytest.importorskip("ray")
from ray.exceptions import ActorDiedError, ActorUnavailableError
from tests.server.ray.handles import Handle

from fovea_cluster.ray import forwarder
from fovea_cluster.ray.faults import Fault
from fovea_cluster.ray.forwarder import Forwarder
from fovea_preprocess.errors import ModelNotReady, Unavailable


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(forwarder, "_PAUSE_S", 0.001)


def sent(error: Exception, losses: int, *, keeps_state: bool = False) -> tuple[object, int]:
    """Return the answer and how often the request was sent, where some replicas are lost."""

    async def replica(request: object) -> object:
        if len(handle.calls) <= losses:
            raise error
        return "answer"

    handle = Handle(replica)
    try:
        found = asyncio.run(Forwarder("m", handle, keeps_state=keeps_state).ask("http", 1))
    except Unavailable as failed:
        found = failed
    return found, len(handle.calls)


def test_a_request_is_sent_again_when_its_replica_dies():
    assert sent(ActorDiedError(), 1) == ("answer", 2)


def test_a_request_that_kills_replicas_kills_two():
    found, times = sent(ActorDiedError(), 100)
    assert isinstance(found, Unavailable)
    assert times == 2


def test_replicas_out_of_reach_are_tried_more_often():
    away = ActorUnavailableError("no way", None)
    assert sent(away, 4) == ("answer", 5)
    assert sent(away, 100)[1] == 8


def test_a_request_of_a_sequence_is_sent_once():
    assert sent(ActorDiedError(), 1, keeps_state=True)[1] == 1


def test_a_cancelled_request_leaves_nothing_unread(caplog):
    class Response:
        """As Ray's: it ends with an error of its own, and may refuse to be cancelled."""

        def __await__(self):
            try:
                yield from asyncio.Event().wait().__await__()
            except asyncio.CancelledError:
                raise RuntimeError("RequestCancelledError") from None

        def cancel(self) -> None:
            raise RuntimeError("BackPressureError")

    class Replicas(Handle):
        def remote(self, *given):
            return Response()

    async def run() -> None:
        way = Forwarder("m", Replicas(None), keeps_state=False)
        asking = asyncio.create_task(way.ask("http", 1))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_request_that_waits_ends_when_no_replica_can_start(monkeypatch):
    monkeypatch.setattr(forwarder, "_LOOK_S", 0.01)
    ended = []

    async def waits(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def run() -> None:
        way = Forwarder("m", Handle(waits), keeps_state=False)
        waiting = asyncio.create_task(way.ask("http", 1))
        await asyncio.sleep(0.05)
        way.fault = Fault("no engine", stopping=True)
        await asyncio.sleep(0.05)
        assert not waiting.done(), "the replica that stops may have it"
        way.fault = Fault("no engine", stopping=False)
        with pytest.raises(ModelNotReady, match=r"'m': its replicas do not start: no engine"):
            await waiting
        with pytest.raises(ModelNotReady, match="no engine"):
            await way.ask("http", 2)
        assert ended == [True]

    asyncio.run(run())
