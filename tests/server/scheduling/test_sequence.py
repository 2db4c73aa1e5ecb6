"""Requests that belong together."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import Served

from fovea_preprocess.errors import InvalidRequest

Serve = Callable[..., Served]


async def ask(served: Served, value: int, **fields: Any) -> int:
    array = np.array([[value]], np.int32)
    response = await served.infer(array, names="INPUT", **fields)
    return int(response.outputs[0].array.item())


@pytest.mark.parametrize("name", [5, "camera-1"])
def test_the_first_of_a_sequence_is_marked(serve: Serve, name: int | str) -> None:
    served = serve("simple_sequence")

    async def sequence() -> list[int]:
        return [
            await ask(served, 5, sequence_id=name, sequence_start=True),
            await ask(served, 5, sequence_id=name),
            await ask(served, 5, sequence_id=name, sequence_end=True),
        ]

    # The model adds one at the start.
    assert asyncio.run(sequence()) == [6, 5, 5]


def test_the_model_sees_end_and_number(serve: Serve) -> None:
    served = serve("simple_dyna_sequence")

    async def sequence() -> list[int]:
        first = await ask(served, 1, sequence_id=100, sequence_start=True)
        return [first, await ask(served, 1, sequence_id=100, sequence_end=True)]

    # It adds one at the start, and the number at the end.
    assert asyncio.run(sequence()) == [2, 101]


def test_sequences_share_batches(serve: Serve) -> None:
    served = serve("simple_dyna_sequence")

    async def sequences() -> list[int]:
        return await asyncio.gather(
            *[ask(served, n, sequence_id=n, sequence_start=True) for n in range(1, 5)]
        )

    assert asyncio.run(sequences()) == [2, 3, 4, 5]
    assert served.statistics.execution_count == 1


def test_a_sequence_keeps_its_order(serve: Serve) -> None:
    served = serve("simple_sequence", gated=True)
    done: list[int] = []

    async def one(value: int) -> None:
        await ask(served, value, sequence_id=3, sequence_start=value == 0)
        done.append(value)

    async def sequence() -> None:
        tasks = [asyncio.create_task(one(value)) for value in range(5)]
        await asyncio.sleep(0)
        assert (served.scheduler.gate.inside, served.scheduler.pending) == (5, 4)
        served.gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(sequence())

    assert done == list(range(5))
    assert served.statistics.execution_count == 5


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "inference request to model 'simple_sequence' must specify a non-zero or non-empty "
         "correlation ID"),
        ({"sequence_id": 9}, "inference request for sequence 9 to model 'simple_sequence' must "
         "specify the START flag on the first request of the sequence"),
        ({"sequence_id": "s"}, "inference request for sequence s to model 'simple_sequence' must "
         "specify the START flag on the first request of the sequence"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told(serve: Serve, fields: dict[str, Any], text: str) -> None:
    served = serve("simple_sequence")

    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(ask(served, 1, **fields))
    assert str(refused.value) == text


def test_one_row_at_a_time(serve: Serve) -> None:
    served = serve("simple_sequence")

    with pytest.raises(InvalidRequest, match="must specify batch-size 1 due to requirements of"):
        asyncio.run(
            served.infer(
                np.zeros((2, 1), np.int32), names="INPUT", sequence_id=1, sequence_start=True
            )
        )


def test_closing_lets_a_sequence_finish_what_was_accepted(serve: Serve) -> None:
    served = serve("simple_sequence", gated=True)

    async def sequence() -> list[int]:
        tasks = [
            asyncio.create_task(ask(served, at, sequence_id=3, sequence_start=at == 0))
            for at in range(3)
        ]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(served.scheduler.close, 10))
        served.gate.open.set()
        values = await asyncio.gather(*tasks)
        await closing
        return values

    assert asyncio.run(sequence()) == [1, 1, 2]


def test_who_gives_up_at_the_engine_keeps_the_turn_until_it_is_done(serve: Serve) -> None:
    served = serve("simple_sequence", gated=True)

    async def sequence() -> int:
        first = asyncio.create_task(ask(served, 1, sequence_id=3, sequence_start=True))
        await asyncio.sleep(0)
        second = asyncio.create_task(ask(served, 2, sequence_id=3))
        await asyncio.to_thread(served.gate.entered.wait)
        first.cancel()
        await asyncio.sleep(0.01)
        assert (served.scheduler.gate.inside, served.scheduler.pending) == (2, 1)
        served.gate.open.set()
        await asyncio.wait([first])
        assert first.cancelled()
        return await second

    assert asyncio.run(sequence()) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_sequence_that_is_over_must_start_again(serve: Serve, ended: bool) -> None:
    def forgetful(config: Any) -> None:
        config.sequence_batching.max_sequence_idle_microseconds = 1

    served = serve("simple_sequence", change=forgetful)

    async def sequence() -> None:
        await ask(served, 1, sequence_id=2, sequence_start=True, sequence_end=ended)
        await asyncio.sleep(0.001)
        with pytest.raises(InvalidRequest, match="must specify the START flag"):
            await ask(served, 1, sequence_id=2)

    asyncio.run(sequence())


def test_a_name_where_the_model_takes_a_number(serve: Serve) -> None:
    served = serve("simple_dyna_sequence")

    with pytest.raises(InvalidRequest):
        asyncio.run(ask(served, 1, sequence_id="camera", sequence_start=True))


def test_what_the_model_is_to_remember_comes_back_to_it(serve: Serve) -> None:
    """OUTPUT1 = INPUT0 - INPUT1, handed in as the next INPUT1."""

    def stateful(config: Any) -> None:
        del config.input[1]
        state = config.sequence_batching.state.add()
        state.input_name, state.output_name, state.data_type = "INPUT1", "OUTPUT1", 8
        state.dims.append(16)

    served = serve("simple", change=stateful)

    async def sequence() -> list[int]:
        values = []
        for at in range(4):
            response = await served.infer(
                np.full((1, 16), 10, np.int32), sequence_id=1, sequence_start=at in (0, 3)
            )
            values.append(int(response.outputs[1].array[0, 0]))
        return values

    assert asyncio.run(sequence()) == [10, 0, 10, 10]
