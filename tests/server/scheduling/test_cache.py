"""Answers that are kept."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import Served, rows

from fovea_preprocess.errors import InvalidOption, InvalidRequest
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.tensors.messages import InferResponse, OutputTensor, RequestedOutput

Serve = Callable[..., Served]

# Two outputs of int32 [1, 16], and what Python takes for them.
ANSWER = 512 + 2 * (512 + 64)


def test_the_same_inputs_are_computed_once(serve: Serve) -> None:
    cache = ResponseCache(10 * ANSWER)
    served = serve("simple_cache", cache=cache)

    for number in "012":
        answer = asyncio.run(served.infer(rows(1), rows(2), id=number))
        assert answer.id == number
        np.testing.assert_array_equal(answer.outputs[0].array, rows(1) + rows(2))
        answer.outputs.clear()  # whoever changes an answer changes that alone
    statistics = served.statistics
    assert (statistics.cache_miss.count, statistics.cache_hit.count) == (1, 2)
    assert (statistics.execution_count, statistics.success.count) == (1, 3)
    assert (len(cache), cache.used) == (1, ANSWER)
    assert (cache.statistics.hits, cache.statistics.misses) == (2, 1)


def test_other_inputs_and_other_outputs_are_others(serve: Serve) -> None:
    served = serve("simple_cache", cache=ResponseCache(10 * ANSWER))
    one = [RequestedOutput("OUTPUT1")]

    asyncio.run(served.infer(rows(1), rows(2)))
    swapped = asyncio.run(served.infer(rows(2), rows(1)))
    part = asyncio.run(served.infer(rows(1), rows(2), outputs=one))

    np.testing.assert_array_equal(swapped.outputs[1].array, rows(2) - rows(1))
    assert [output.name for output in part.outputs] == ["OUTPUT1"]
    assert served.statistics.cache_hit.count == 0


def test_the_least_recently_used_makes_room(serve: Serve) -> None:
    cache = ResponseCache(2 * ANSWER)
    served = serve("simple_cache", cache=cache)

    for first in (1, 2, 1, 3, 1, 2):
        asyncio.run(served.infer(rows(first), rows(0)))

    assert served.statistics.cache_hit.count == 2
    assert cache.statistics.evictions == 2
    assert cache.used == 2 * ANSWER


def test_an_answer_that_does_not_fit_is_not_kept(serve: Serve) -> None:
    cache = ResponseCache(ANSWER - 1)
    served = serve("simple_cache", cache=cache)

    asyncio.run(served.infer(rows(1), rows(2)))

    assert (len(cache), cache.used) == (0, 0)


def test_answers_of_a_model_that_is_unloaded_go(serve: Serve) -> None:
    cache = ResponseCache(10 * ANSWER)
    first, other = serve("simple_cache", cache=cache), serve("simple_cache", cache=cache)
    for served in (first, other):
        asyncio.run(served.infer(rows(1), rows(2)))
    assert other.statistics.cache_miss.count == 1, "models do not share answers"

    first.scheduler.close(0)

    assert (len(cache), cache.used) == (1, ANSWER)


def test_an_ensemble_forgets_when_a_part_of_it_is_loaded_again(serve: Serve) -> None:
    parts: dict[str, Scheduler] = {}

    def cached(config: Any) -> None:
        config.response_cache.enable = True

    served = serve(
        "simple_ensemble",
        cache=ResponseCache(10 * ANSWER),
        change=cached,
        find=lambda name, version: parts[name],
    )
    hits = []
    for _ in range(2):
        parts["python_int32_int32_int32"] = serve("python_int32_int32_int32").scheduler
        for _ in range(2):
            asyncio.run(served.infer(rows(1), rows(2)))
            hits.append(served.statistics.cache_hit.count)

    assert hits == [0, 1, 1, 2]


def test_empty_answers_take_room_too(serve: Serve) -> None:
    cache = ResponseCache(100_000)
    answer = InferResponse("m", "1", [OutputTensor("Y", "FP32", np.zeros((0,), np.float32))])

    for n in range(1000):
        cache.keep(b"m", n.to_bytes(8), answer)

    assert len(cache) < 100
    assert cache.statistics.evictions == 1000 - len(cache)


def test_a_model_that_does_not_ask_for_it_is_not_cached(serve: Serve) -> None:
    cache = ResponseCache(10 * ANSWER)

    asyncio.run(serve("simple", cache=cache).infer(rows(1), rows(2)))

    assert cache.statistics.lookups.count == 0


def test_what_is_refused_is_not_kept(serve: Serve) -> None:
    cache = ResponseCache(10 * ANSWER)
    served = serve("simple_cache", cache=cache)

    for _ in range(2):
        with pytest.raises(InvalidRequest, match="expected 2 inputs but got 1"):
            asyncio.run(served.infer(rows(1)))

    assert len(cache) == cache.statistics.misses == 0


def test_a_large_input_is_hashed_too(serve: Serve) -> None:
    def cached(config: object) -> None:
        config.response_cache.enable = True  # type: ignore[attr-defined]

    served = serve("identity_fp32", cache=ResponseCache(1 << 20), change=cached)

    for _ in range(2):
        asyncio.run(served.infer(np.ones((200, 200), np.float32)))

    assert served.statistics.cache_hit.count == 1


@pytest.mark.parametrize("setting", ["", "local", "local,size=", "local,size=1M", "redis,size=5"])
def test_a_setting_that_is_wrong_is_told(setting: str) -> None:
    assert ResponseCache.parse("local,size=1048576").size == 1 << 20
    with pytest.raises(InvalidOption, match="local,size=BYTES"):
        ResponseCache.parse(setting)
