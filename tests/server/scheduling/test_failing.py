"""Schedulers that are closed, and engines that fail."""

import asyncio
from collections.abc import Callable

from tests.server.scheduling.askers import Askers
from tests.server.scheduling.golden import Served, rows

from fovea_preprocess.errors import DeviceLost, InferenceFailed, ModelNotReady, ShuttingDown
from fovea_server.statistics import FailureReason
from fovea_server.v2.messages import InferResponse

Serve = Callable[..., Served]


def test_closing_answers_who_is_inside_and_refuses_who_comes(serve: Serve) -> None:
    asked = Askers(serve("simple", gated=True))

    async def ask() -> list[InferResponse | BaseException]:
        await asked.send("at the engine")
        await asked.send("waiting")
        closing = asyncio.create_task(asyncio.to_thread(asked.served.scheduler.close, 10))
        while not isinstance(await refusal(), ShuttingDown):
            await asyncio.sleep(0)
        answers = await asked.answers()
        await closing
        return answers

    async def refusal() -> BaseException | None:
        try:
            async with asyncio.timeout(0.01):
                await asked.served.infer(rows(0), rows(0))
        except (ShuttingDown, TimeoutError) as error:
            return error
        return None

    assert all(isinstance(answer, InferResponse) for answer in asyncio.run(ask()))


def test_closing_does_not_wait_for_ever(serve: Serve) -> None:
    asked = Askers(serve("simple", gated=True))

    async def ask() -> list[InferResponse | BaseException]:
        await asked.send("at the engine")
        await asked.send("waiting")
        closing = asyncio.create_task(asyncio.to_thread(asked.served.scheduler.close, 0))
        await asyncio.wait([asked.tasks["waiting"]])
        answers = await asked.answers()
        await closing
        return answers

    first, waiting = asyncio.run(ask())

    assert isinstance(first, InferResponse)
    assert isinstance(waiting, ShuttingDown)


def test_an_engine_that_fails_fails_its_batch_only(serve: Serve) -> None:
    asked = Askers(serve("simple", gated=True))
    asked.served.gate.error = ValueError("nobody thought of this")

    async def ask() -> list[InferResponse | BaseException]:
        await asked.send("broken")
        broken = await asked.answers()
        asked.served.gate.error = None
        await asked.send("sound")
        return [*broken, *await asked.answers()]

    broken, _, sound = asyncio.run(ask())

    assert isinstance(broken, InferenceFailed)
    assert str(broken) == "an internal error; the server's log has the details"
    assert isinstance(sound, InferResponse)
    assert asked.served.statistics.failures == {FailureReason.BACKEND: 1}


def test_a_device_that_is_lost_takes_the_model_down(serve: Serve) -> None:
    asked = Askers(serve("simple", gated=True))
    asked.served.gate.error = DeviceLost("the GPU does not answer")

    async def ask() -> list[InferResponse | BaseException]:
        await asked.send("at the engine")
        await asked.send("waiting")
        await asked.answers()
        await asked.send("later")
        return await asked.answers()

    at_the_engine, waiting, later = asyncio.run(ask())

    assert isinstance(at_the_engine, DeviceLost)
    assert isinstance(waiting, ModelNotReady)
    assert isinstance(later, ModelNotReady)
    assert asked.served.scheduler.failure == "the GPU does not answer"
