"""Which requests share a batch."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.server.scheduling.served import Served, rows

from fovea_engines.backends.registry import open_session
from fovea_engines.session import Session
from fovea_server.scheduling.batching import Decision, DynamicBatching, InlineExecution
from fovea_server.scheduling.job import Job, TensorSource
from fovea_server.tensors.check import CheckedRequest
from fovea_server.tensors.messages import InferRequest

SECOND = 1_000_000_000


class Unused:
    """A session that is not called."""

    steady = False


def job(rows: int = 1, arrived_ns: int = 0, width: int = 4, name: str = "x") -> Job:
    feeds = {name: np.zeros((rows, width), np.float32)}
    source = TensorSource(cast(Session, Unused()), DynamicBatching(8))
    return source.job(InferRequest("m", None, []), CheckedRequest(feeds, rows), arrived_ns)


@pytest.mark.parametrize(
    ("preferred", "delay_us", "rows", "count"),
    [
        ([], 0, [1], 1),
        ([], 0, [1, 1, 1], 3),
        ([], 0, [4, 4, 1], 2),
        ([], 0, [3, 3, 3], 2),
        ([4], 0, [1, 1, 1, 1, 1], 4),
        ([4, 8], 0, [1] * 9, 8),
        ([4], 0, [3, 3], 1),
        ([4, 8], 1000, [1, 1, 1], 0),
        ([4, 8], 1000, [1, 1, 1, 1, 1], 4),
        ([], 1000, [1] * 7, 0),
        ([], 1000, [1] * 8, 8),
        ([], 1000, [5, 5], 1),
    ],
)
def test_count(preferred: list[int], delay_us: int, rows: list[int], count: int) -> None:
    batching = DynamicBatching(8, preferred, delay_us)

    assert batching.decide([job(n) for n in rows], now_ns=0).count == count


def test_what_does_not_reach_a_preferred_size_waits_for_the_rest_of_the_delay() -> None:
    batching = DynamicBatching(8, [4], delay_us=1_000_000)
    waiting = [job(arrived_ns=0), job(arrived_ns=SECOND // 2)]

    assert batching.decide(waiting, SECOND // 4) == Decision(0, 0.75)
    assert batching.decide(waiting, SECOND) == Decision(2)


def test_after_the_delay_more_than_a_preferred_size_goes() -> None:
    batching = DynamicBatching(8, [4], delay_us=1_000_000)

    assert batching.decide([job() for _ in range(6)], SECOND // 2) == Decision(4)
    assert batching.decide([job() for _ in range(6)], SECOND) == Decision(6)


@pytest.mark.parametrize("other", [job(width=5), job(name="y")])
def test_other_shapes_and_other_inputs_end_a_batch(other: Job) -> None:
    batching = DynamicBatching(8, delay_us=1_000_000)

    assert batching.decide([job(), job(), other, job()], 0) == Decision(2)


@pytest.mark.parametrize("rows", [[1], [1, 1], [5], [5, 3, 1]])
def test_in_batches_of_one_each_goes_alone(rows: list[int]) -> None:
    assert DynamicBatching(1).decide([job(n) for n in rows], 0) == Decision(1)


# When a model runs on the event loop.


Serve = Callable[..., Served]

QUICK, SLOW = 20_000, 500_000_000
SMALL, LARGE = (
    [cast(Job, SimpleNamespace(source=SimpleNamespace(nbytes=lambda job, size=size: size)))]
    for size in (64, 4 << 20)
)


def opened(*, steady: bool = True) -> InlineExecution:
    lane = InlineExecution(steady=steady)
    in_threads(lane, *[QUICK] * 16)
    return lane


def in_threads(lane: InlineExecution, *cpu_ns: int) -> None:
    for each_ns in cpu_ns:
        lane.learn(each_ns)


def test_opens_for_a_model_of_which_a_call_was_quick() -> None:
    lane = InlineExecution(steady=True)
    assert not lane.takes(SMALL)

    in_threads(lane, *[SLOW] * 15)
    assert not lane.takes(SMALL)

    in_threads(lane, QUICK)
    assert lane.takes(SMALL)


def test_stays_closed_for_a_slow_model() -> None:
    lane = InlineExecution(steady=True)

    in_threads(lane, *[SLOW] * 1000)

    assert not lane.takes(SMALL)


def test_stays_closed_for_a_model_whose_time_depends_on_values() -> None:
    assert not opened(steady=False).takes(SMALL)


def test_does_not_take_large_inputs_nor_many_small_ones() -> None:
    lane = opened()

    assert lane.takes(SMALL)
    assert not lane.takes(LARGE)
    assert not lane.takes(2000 * SMALL)


def test_one_interruption_does_not_close_it_and_a_long_wait_does() -> None:
    lane = opened()

    lane.learn(QUICK, call_ns=10_000_000)
    assert lane.takes(SMALL)

    lane.learn(QUICK, call_ns=SLOW)
    assert not lane.takes(SMALL)


def test_a_call_that_computed_for_long_closes_it_each_time_for_longer() -> None:
    lane = opened()

    for waited in (32, 64, 128):
        lane.learn(10_000_000, call_ns=10_000_000)
        in_threads(lane, *[QUICK] * (waited - 1))
        assert not lane.takes(SMALL)
        in_threads(lane, QUICK)
        assert lane.takes(SMALL)


def test_a_step_of_the_processors_clock_is_no_long_computation() -> None:
    lane = opened()

    lane.learn(10_000_000, call_ns=QUICK)

    assert lane.takes(SMALL)


def test_a_model_that_is_quick_only_now_and_then_is_tried_ever_more_rarely() -> None:
    lane = InlineExecution(steady=True)
    tries = 0
    for _ in range(20_000):
        if lane.takes(SMALL):
            tries += 1
            lane.learn(QUICK, call_ns=SLOW)
        in_threads(lane, QUICK)

    assert tries <= 12


def test_after_a_long_good_time_it_opens_again_soon() -> None:
    lane = opened()
    for _ in range(2000):
        lane.learn(QUICK, call_ns=QUICK)
    lane.learn(QUICK, call_ns=SLOW)
    assert not lane.takes(SMALL)

    in_threads(lane, *[QUICK] * 16)

    assert lane.takes(SMALL)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_session_knows_whether_its_graph_loops(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "loop.onnx"
    onnx.save(looping(), path)

    with open_session(backend, path, max_batch=0) as session:
        assert not session.steady


def looping() -> onnx.ModelProto:
    """N -> the sum of N ones."""
    counter, one, true = "counter", np.array(1, np.int64), np.array(True)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes on"]),
            helper.make_node("Add", ["sum", "one"], ["more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info(counter, TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("goes on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.INT64, []),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["N", "true", "one"], ["Y"], body=body)],
        "loop",
        [helper.make_tensor_value_info("N", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("Y", TensorProto.INT64, [])],
        [numpy_helper.from_array(one, "one"), numpy_helper.from_array(true, "true")],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def test_nothing_runs_on_the_event_loop_while_the_engine_is_taken(serve: Serve) -> None:
    served = serve("identity_fp32")
    threads: list[str] = []
    real = served.session.infer
    gate = threading.Event()

    def infer(feeds: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        (array,) = feeds.values()
        assert array.nbytes < 1 << 20 or gate.wait(60)
        return real(feeds, **options)

    served.session.infer = infer
    small, large = np.zeros((1, 4), np.float32), np.zeros((1, 1 << 20), np.float32)

    async def ask() -> None:
        for _ in range(40):
            await served.infer(small)
        assert threads[-1] == threading.main_thread().name
        threads.clear()
        taken = asyncio.create_task(served.infer(large))
        await asyncio.sleep(0)
        beside = asyncio.create_task(served.infer(small))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(taken, beside)

    asyncio.run(ask())

    assert threading.main_thread().name not in threads


def test_a_whole_batch_counts(serve: Serve) -> None:
    def change(config: Any) -> None:
        config.max_batch_size = 10_000
        config.dynamic_batching.max_queue_delay_microseconds = 1000

    served = serve("simple", change=change)
    threads: list[str] = []
    real = served.session.infer

    def infer(feeds: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(feeds, **options)

    served.session.infer = infer

    async def ask() -> None:
        for _ in range(20):
            await served.infer(rows(0), rows(0))
        threads.clear()
        await asyncio.gather(
            served.infer(rows(0), rows(0)), served.infer(rows(0, 5000), rows(0, 5000))
        )

    asyncio.run(ask())

    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name
