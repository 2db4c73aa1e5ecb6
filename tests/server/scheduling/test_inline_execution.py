"""When a model runs on the event loop."""

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
from tests.server.scheduling.golden import Served, rows

from fovea_engines.backends.registry import open_session
from fovea_server.scheduling.batching import InlineExecution
from fovea_server.scheduling.job import Job

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
