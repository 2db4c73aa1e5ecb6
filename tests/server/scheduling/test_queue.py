"""Who waits, for how long, and who goes first."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import SCENES, Askers, Served, ServedImages, wire

from fovea_preprocess.errors import (
    DeadlineExceeded,
    QueueFull,
)
from fovea_server.observability.model_statistics import FailureReason
from fovea_server.tensors.messages import ImageResult, InferRequest, InferResponse

Serve = Callable[..., Served | ServedImages]
ANSWER = (InferResponse, ImageResult)


def dynamic(**values: Any) -> Callable[[Any], None]:
    """A change of the dynamic batching of a model."""

    def change(config: Any) -> None:
        for name, value in values.items():
            if name == "preferred_batch_size":
                config.dynamic_batching.preferred_batch_size[:] = [value]
            else:
                setattr(config.dynamic_batching, name, value)

    return change


def test_a_full_queue_refuses_at_once(serve_either: Serve) -> None:
    asked = Askers(
        serve_either("simple_prio", gated=True, change=dynamic(max_queue_delay_microseconds=0))
    )

    async def ask() -> list[object]:
        for at in range(20):
            await asked.send(str(at))
        return await asked.answers()

    answers = asyncio.run(ask())

    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    # One is at the engine, sixteen wait.
    assert len(refused) == 3
    assert "Exceeds maximum queue size" in str(refused[0]) or "--max-queue" in str(refused[0])
    assert asked.served.statistics.failures == {FailureReason.REJECTED: 3}
    assert asked.served.statistics.success.count == 17


def test_a_server_accepts_so_many_requests_for_a_model(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True, max_queue=20))

    async def ask() -> list[object]:
        for at in range(22):
            await asked.send(str(at))
        await asyncio.sleep(0)
        assert (asked.served.scheduler.pending, asked.served.scheduler.gate.inside) == (19, 20)
        return await asked.answers()

    answers = asyncio.run(ask())

    assert [type(answer) for answer in answers[20:]] == [QueueFull, QueueFull]
    assert all(isinstance(answer, ANSWER) for answer in answers[:20])
    assert asked.served.statistics.failures == {FailureReason.REJECTED: 2}


def test_a_request_may_wait_for_less_than_its_queue_allows(serve_either: Serve) -> None:
    change = dynamic(max_queue_delay_microseconds=0)
    asked = Askers(serve_either("simple_prio", gated=True, change=change))

    async def ask() -> None:
        await asked.send("at the engine")
        with pytest.raises(DeadlineExceeded, match=r"^Request timeout expired$|queue policy"):
            await asked.served.ask(timeout_us=1000)
        await asked.answers()

    asyncio.run(ask())

    assert asked.served.statistics.failures == {FailureReason.REJECTED: 1}
    assert asked.served.scheduler.pending == 0


def test_what_has_waited_too_long_may_go_last(serve_either: Serve) -> None:
    def change(config: Any) -> None:
        dynamic(max_queue_delay_microseconds=0, preferred_batch_size=1)(config)
        config.dynamic_batching.default_queue_policy.timeout_action = 1

    asked = Askers(serve_either("simple_prio", gated=True, change=change))

    async def ask() -> None:
        await asked.send("at the engine")
        await asked.send("late", timeout_us=1)
        await asyncio.sleep(0.01)
        await asked.send("a")
        await asked.send("b")
        await asked.answers()

    asyncio.run(ask())

    assert asked.order == ["at the engine", "a", "b", "late"]


def test_a_higher_priority_goes_first(serve_either: Serve) -> None:
    change = dynamic(max_queue_delay_microseconds=0, preferred_batch_size=1)
    asked = Askers(serve_either("simple_prio", gated=True, change=change))

    async def ask() -> None:
        await asked.send("at the engine")
        await asked.send("third", priority=3)
        # Out of range, so it has the default: 2.
        await asked.send("second", priority=7)
        await asked.send("first", priority=1)
        await asked.answers()

    asyncio.run(ask())

    assert asked.order == ["at the engine", "first", "second", "third"]


def test_a_priority_may_have_a_queue_of_its_own(serve_either: Serve) -> None:
    def change(config: Any) -> None:
        dynamic(max_queue_delay_microseconds=0)(config)
        config.dynamic_batching.priority_queue_policy[3].max_queue_size = 1

    asked = Askers(serve_either("simple_prio", gated=True, change=change))

    async def ask() -> list[object]:
        await asked.send("at the engine")
        for at in range(3):
            await asked.send(str(at), priority=3)
        return await asked.answers()

    *answers, third, fourth = asyncio.run(ask())

    assert all(isinstance(answer, ANSWER) for answer in answers)
    assert isinstance(third, QueueFull)
    assert isinstance(fourth, QueueFull)


def test_giving_up_makes_room(serve_either: Serve) -> None:
    def one(config: Any) -> None:
        dynamic(max_queue_delay_microseconds=0, preferred_batch_size=1)(config)
        config.dynamic_batching.default_queue_policy.max_queue_size = 1

    asked = Askers(serve_either("simple_prio", gated=True, change=one))

    async def ask() -> list[object]:
        await asked.send("at the engine")
        await asked.send("given up")
        asked.tasks["given up"].cancel()
        await asyncio.sleep(0)
        await asked.send("instead")
        return await asked.answers()

    first, given_up, instead = asyncio.run(ask())

    assert isinstance(given_up, asyncio.CancelledError)
    assert isinstance(first, ANSWER)
    assert isinstance(instead, ANSWER)
    assert asked.served.statistics.failures == {FailureReason.CANCELED: 1}
    assert asked.served.statistics.execution_count == 2


def test_giving_up_at_the_engine_is_counted_when_it_is_done(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True))

    async def ask() -> None:
        await asked.send("given up")
        asked.tasks["given up"].cancel()
        await asked.send("behind it")
        await asked.answers()

    asyncio.run(ask())

    assert asked.order == ["behind it"]
    assert asked.served.statistics.failures == {FailureReason.CANCELED: 1}


def test_answers_keep_the_order_of_their_requests(serve_either: Serve) -> None:
    def change(config: Any) -> None:
        dynamic(max_queue_delay_microseconds=0, preferred_batch_size=1, preserve_ordering=True)(
            config
        )

    asked = Askers(serve_either("simple_prio", gated=True, change=change))

    async def ask() -> None:
        await asked.send("a", priority=3)
        await asked.send("b", priority=3)
        await asked.send("given up", priority=3)
        await asked.send("c", priority=1)
        asked.tasks["given up"].cancel()
        await asked.answers()

    asyncio.run(ask())

    assert asked.order == ["a", "b", "c"]


# Tensors and images of one model share its queue.


CLIENTS, ANSWERS = 16, 160


def test_each_kind_gets_its_share(serve_images: Callable[..., ServedImages]) -> None:
    served = serve_images("simple")
    spec = served.engine.session.inputs[0]
    tensor = wire(spec.name, np.zeros((1, *spec.shape[1:]), spec.numpy_dtype))
    answered: Counter[str] = Counter()

    async def client(kind: str) -> None:
        while answered.total() < ANSWERS:
            if kind == "image":
                await served.predict(SCENES[0])
            else:
                await served.scheduler.infer(InferRequest("simple", None, [tensor]))
            answered[kind] += 1

    async def ask() -> None:
        kinds = ["image", "tensor"] * CLIENTS
        await asyncio.gather(*[client(kind) for kind in kinds])

    asyncio.run(ask())

    # A machine that is half as fast would answer half of all.
    assert min(answered.values()) >= 0.4 * ANSWERS / 2
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_one_limit_holds_for_both(serve_images: Callable[..., ServedImages]) -> None:
    served = serve_images("simple", gated=True, max_queue=4)
    spec = served.engine.session.inputs[0]
    tensor = wire(spec.name, np.zeros((1, *spec.shape[1:]), spec.numpy_dtype))

    async def ask() -> list[object]:
        asked = [
            served.scheduler.infer(InferRequest("simple", None, [tensor]))
            if n % 2
            else served.predict(SCENES[0])
            for n in range(6)
        ]
        waiting = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0)
        served.gate.open.set()
        return await waiting

    kinds = [type(answer).__name__ for answer in asyncio.run(ask())]

    assert kinds == ["list", "InferResponse", "list", "InferResponse", "QueueFull", "QueueFull"]
