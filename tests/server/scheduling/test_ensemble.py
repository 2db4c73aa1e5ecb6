"""Models that are made of others."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import Served, rows

from fovea_preprocess.errors import InvalidRequest, NotFound, QueueFull
from fovea_server.observability.model_statistics import FailureReason
from fovea_server.scheduling.base import Scheduler
from fovea_server.tensors.messages import InferResponse

Serve = Callable[..., Served]


def finder(**served: Served) -> Callable[[str, int | None], Scheduler]:
    def find(name: str, version: int | None) -> Scheduler:
        if name not in served:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return served[name].scheduler

    return find


def test_tensors_go_from_model_to_model(serve: Serve) -> None:
    adder = serve("python_int32_int32_int32")
    served = serve("simple_ensemble", find=finder(python_int32_int32_int32=adder))

    response = asyncio.run(served.infer(rows(5, 2), rows(1, 2), id="e"))

    assert (response.model_name, response.id) == ("simple_ensemble", "e")
    # (a + b) + (a - b), (a + b) - (a - b)
    np.testing.assert_array_equal(response.outputs[0].array, 2 * rows(5, 2))
    np.testing.assert_array_equal(response.outputs[1].array, 2 * rows(1, 2))
    counted, parts = served.statistics, adder.statistics
    assert (counted.inference_count, counted.execution_count) == (2, 1)
    assert counted.compute_infer.ns == parts.compute_infer.ns
    assert counted.compute_output.ns == parts.compute_output.ns
    assert counted.queue.ns < counted.success.ns - counted.compute_infer.ns
    assert adder.statistics.inference_count == 4
    assert served.scheduler.gate.inside == 0


def test_the_order_of_the_steps_does_not_matter(serve: Serve) -> None:
    def reverse(config: Any) -> None:
        steps = list(config.ensemble_scheduling.step)
        del config.ensemble_scheduling.step[:]
        config.ensemble_scheduling.step.extend(reversed(steps))

    adder = serve("python_int32_int32_int32")
    served = serve("simple_ensemble", find=finder(python_int32_int32_int32=adder), change=reverse)

    response = asyncio.run(served.infer(rows(5), rows(1)))

    np.testing.assert_array_equal(response.outputs[0].array, 2 * rows(5))


def test_steps_that_wait_for_none_run_side_by_side(serve: Serve) -> None:
    def two_of_the_first(config: Any) -> None:
        del config.ensemble_scheduling.step[1]
        first = config.ensemble_scheduling.step[0]
        first.output_map["OUTPUT0"], first.output_map["OUTPUT1"] = "OUTPUT0", "unused"
        config.ensemble_scheduling.step.add().CopyFrom(first)
        second = config.ensemble_scheduling.step[1]
        second.output_map["OUTPUT0"], second.output_map["OUTPUT1"] = "unused too", "OUTPUT1"

    adder = serve("python_int32_int32_int32", gated=True)
    served = serve(
        "simple_ensemble", find=finder(python_int32_int32_int32=adder), change=two_of_the_first
    )

    async def ask() -> InferResponse:
        asked = asyncio.create_task(served.infer(rows(5), rows(1)))
        while adder.scheduler.gate.inside < 2:
            await asyncio.sleep(0)
        adder.gate.open.set()
        return await asked

    response = asyncio.run(ask())

    np.testing.assert_array_equal(response.outputs[0].array, rows(5) + rows(1))
    np.testing.assert_array_equal(response.outputs[1].array, rows(5) - rows(1))


def test_what_a_model_refuses_is_told_with_the_ensemble(serve: Serve) -> None:
    flat = serve("simple_nobatch")
    served = serve("simple_ensemble", find=finder(python_int32_int32_int32=flat))

    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(served.infer(rows(5), rows(1)))

    assert str(refused.value).startswith(
        "in ensemble 'simple_ensemble', [request id: <id_unknown>] unexpected shape for input "
        "'INPUT1' for model 'simple_nobatch'. Expected [16], got [1,16]."
    )
    assert served.statistics.failures == {FailureReason.OTHER: 1}


def test_a_full_model_is_told_so_with_the_time_to_come_back(serve: Serve) -> None:
    def one(config: Any) -> None:
        config.dynamic_batching.default_queue_policy.max_queue_size = 1

    adder = serve("python_int32_int32_int32", gated=True, change=one)
    served = serve("simple_ensemble", find=finder(python_int32_int32_int32=adder))

    async def ask() -> None:
        accepted = []
        for _ in range(2):
            accepted.append(asyncio.create_task(served.infer(rows(5), rows(1))))
            while adder.scheduler.gate.inside < len(accepted):
                await asyncio.sleep(0)
        with pytest.raises(QueueFull, match=r"in ensemble .* Exceeds maximum queue") as refused:
            await served.infer(rows(5), rows(1))
        assert refused.value.retry_after_s >= 0
        adder.gate.open.set()
        await asyncio.gather(*accepted, return_exceptions=True)

    asyncio.run(ask())


def test_a_model_that_is_gone(serve: Serve) -> None:
    served = serve("simple_ensemble", find=finder())

    with pytest.raises(NotFound, match=r"^in ensemble 'simple_ensemble', Request for unknown"):
        asyncio.run(served.infer(rows(5), rows(1)))


def test_giving_up_gives_the_steps_up(serve: Serve) -> None:
    adder = serve("python_int32_int32_int32", gated=True)
    served = serve("simple_ensemble", find=finder(python_int32_int32_int32=adder))

    async def ask() -> None:
        asked = asyncio.create_task(served.infer(rows(5), rows(1)))
        while not adder.scheduler.gate.inside:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        adder.gate.open.set()
        while adder.scheduler.gate.inside:
            await asyncio.sleep(0)

    asyncio.run(ask())

    assert served.statistics.failures == {FailureReason.CANCELED: 1}
