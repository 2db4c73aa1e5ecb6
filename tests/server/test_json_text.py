"""JSON is weighed before it is parsed; what is small enough is read whole."""

import asyncio
import json
import random
import threading

import numpy as np
import orjson
import pytest

from fovea_preprocess.errors import BodyTooLarge, QueueFull
from fovea_server.byte_budget import ByteBudget
from fovea_server.http.v2.tensor_json import elements_of
from fovea_server.json_text import (
    LARGE,
    MAX_OF_TENSORS,
    MAX_WEIGHT,
    JsonThread,
    check_weight,
    parse_json,
)
from fovea_server.tensors.triton_json import parse_json as parse_triton

COUNT = 60_000


@pytest.mark.parametrize("shape", [(COUNT,), (6, 10_000), (2, 30_000, 1), (300, 10, 20)])
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : "), (",\n", ":\t")])
def test_arrays_of_any_shape(shape, separators):
    sent = np.arange(COUNT, dtype=np.float32).reshape(shape) / 7
    text = json.dumps({"data": sent.tolist()}, separators=separators).encode()
    array = elements_of("INPUT", "FP32", parse_triton(text)["data"], COUNT)
    assert np.array_equal(array, sent.ravel())


def test_strings_with_anything_in_them():
    chance = random.Random(3)
    sent = ["".join(chance.choices('a,"[]{}\\ é😀\n', k=chance.randrange(9))) for _ in range(COUNT)]
    sent[7] = "long," * 10_000
    data = parse_triton(json.dumps({"data": sent}).encode(), 2 * MAX_WEIGHT)["data"]
    assert elements_of("INPUT", "BYTES", data, COUNT).tolist() == [s.encode() for s in sent]


def test_irregular_nesting_and_what_is_no_number():
    sent = [[float("nan"), 1.0], [], [[2.0], 3.0], -float("inf")] * (COUNT // 5)
    data = parse_triton(json.dumps({"data": sent}).encode())["data"]
    array = elements_of("INPUT", "FP32", data, None)
    assert array[:5].tolist()[1:] == [1.0, 2.0, 3.0, -float("inf")]
    assert np.array_equal(array.reshape(-1, 5)[0], array.reshape(-1, 5)[-1], equal_nan=True)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MAX_WEIGHT + b"1]",
        b"[" + b"[]," * (MAX_WEIGHT // 7) + b"[]]",
        b"[" + b"{}," * (MAX_WEIGHT // 7) + b"{}]",
        b"{" + b",".join(b'"%x":1' % i for i in range(MAX_WEIGHT // 11)) + b"}",
        b"[" * (MAX_WEIGHT // 6 + 1),
    ],
)
def test_too_many_values_of_any_kind_are_not_parsed(text):
    with pytest.raises(BodyTooLarge):
        parse_json(text)
    with pytest.raises(BodyTooLarge):
        parse_triton(text)
    # A tenth of it has room.
    check_weight(text[: len(text) // 10])


def test_what_only_python_parses_has_the_lower_bound():
    text = b"[" + b"1," * MAX_WEIGHT + b"NaN]"
    with pytest.raises(BodyTooLarge):
        parse_triton(text, MAX_OF_TENSORS)
    assert len(parse_triton(text.replace(b"NaN", b"1"), MAX_OF_TENSORS)) == MAX_WEIGHT + 1


def test_the_longest_text_is_one_value():
    assert parse_json(orjson.dumps(["x" * (16 << 20)])) == ["x" * (16 << 20)]


def test_large_documents_are_parsed_by_one_thread_and_small_ones_at_once():
    small, large = b"[1]", b"[" + b"1," * LARGE + b"1]"
    threads = []

    def work() -> None:
        threads.append(threading.current_thread())

    async def run() -> None:
        budget = ByteBudget(64 << 20)
        parser = JsonThread(budget)
        await parser.run(small, work)
        assert threads == [threading.current_thread()]
        await asyncio.gather(*(parser.run(large, work) for _ in range(3)))
        assert len(set(threads)) == 2
        assert budget.held == 0
        parser.close()

    asyncio.run(run())


def test_what_a_document_takes_in_memory_counts():
    text = b"[" + b"1," * LARGE + b"1]"

    async def run() -> None:
        budget = ByteBudget(4 << 20)
        budget.take(len(text))
        parser = JsonThread(budget)
        with pytest.raises(QueueFull):
            await parser.run(text, lambda: pytest.fail("it has no room"))
        assert budget.held == len(text)
        parser.close()

    asyncio.run(run())
