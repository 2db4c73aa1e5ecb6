"""Schedulers that are closed, and engines that fail."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.server.scheduling.served import Askers, strings

from fovea_preprocess.errors import DeviceLost, InferenceFailed, ModelNotReady, ShuttingDown
from fovea_server.observability.model_statistics import FailureReason
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.tensors.messages import ImageResult, InferResponse

Serve = Callable[..., Any]
ANSWER = (InferResponse, ImageResult)


def test_closing_answers_who_is_inside_and_refuses_who_comes(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True))

    async def ask() -> list[object]:
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
                await asked.served.ask()
        except (ShuttingDown, TimeoutError) as error:
            return error
        return None

    assert all(isinstance(answer, ANSWER) for answer in asyncio.run(ask()))


def test_closing_does_not_wait_for_ever(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True))

    async def ask() -> list[object]:
        await asked.send("at the engine")
        await asked.send("waiting")
        closing = asyncio.create_task(asyncio.to_thread(asked.served.scheduler.close, 0))
        await asyncio.wait([asked.tasks["waiting"]])
        answers = await asked.answers()
        await closing
        return answers

    first, waiting = asyncio.run(ask())

    assert isinstance(first, ANSWER)
    assert isinstance(waiting, ShuttingDown)


def test_a_batch_that_is_taken_while_its_model_closes_fails(serve_either: Serve) -> None:
    served = serve_either("simple", gated=True)
    taken, closed = threading.Event(), threading.Event()

    class PausedQueue(JobQueue):
        """Waits between taking a batch and handing it to a thread."""

        def next(self) -> Any:
            batch = super().next()
            if batch[0]:
                taken.set()
                closed.wait()
            return batch

    served.scheduler._queue.__class__ = PausedQueue

    def close() -> None:
        taken.wait()
        served.scheduler.close(0)
        closed.set()

    async def ask() -> object:
        closing = asyncio.create_task(asyncio.to_thread(close))
        async with asyncio.timeout(60):
            [answer] = await asyncio.gather(served.ask(), return_exceptions=True)
        await closing
        return answer

    assert isinstance(asyncio.run(ask()), ShuttingDown)


def test_a_request_that_fails_takes_no_other_of_its_batch_with_it(
    serve: Serve, tmp_path: Path
) -> None:
    """The model looks its input up in a table of four."""
    table = numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    index = helper.make_tensor_value_info("INPUT0", TensorProto.INT64, ["rows", 1])
    found = helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["rows", 1])
    node = helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])
    graph = helper.make_graph([node], "lookup", [index], [found], [table])
    opset = helper.make_opsetid("", 17)
    (tmp_path / "1").mkdir()
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(model, tmp_path / "1" / "model.onnx")
    (tmp_path / "config.pbtxt").write_text(
        'max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_INT64 dims: 1 } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 } '
        "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 10000000 }"
    )
    served = serve(tmp_path)

    async def ask() -> list[object]:
        asked = [served.infer(np.array([[index]])) for index in (1, 2, 99, 3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    one, two, wrong, three = asyncio.run(ask())

    assert isinstance(wrong, InferenceFailed)
    values = [answer.outputs[0].array.item() for answer in (one, two, three)]  # type: ignore[union-attr]
    assert values == [1.0, 2.0, 3.0]
    assert served.statistics.failures == {FailureReason.BACKEND: 1}
    assert served.statistics.execution_count == served.statistics.inference_count == 3


def test_an_engine_that_fails_once_answers_the_next(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True))
    asked.served.gate.error = ValueError("nobody thought of this")

    async def ask() -> list[object]:
        await asked.send("broken")
        broken = await asked.answers()
        asked.served.gate.error = None
        await asked.send("sound")
        return [*broken, *await asked.answers()]

    broken, _, sound = asyncio.run(ask())

    assert isinstance(broken, InferenceFailed)
    assert str(broken) == "an internal error; the server's log has the details"
    assert isinstance(sound, ANSWER)
    assert asked.served.statistics.failures == {FailureReason.BACKEND: 1}


def test_closing_waits_for_whoever_has_come_in(serve: Serve) -> None:
    """A request whose many strings are still being taken apart, in a thread."""
    served = serve("string_identity")
    given = strings(*[b"%d" % n for n in range(20_000)])

    async def ask() -> InferResponse:
        asked = asyncio.create_task(served.infer(given))
        await asyncio.sleep(0)
        await asyncio.to_thread(served.scheduler.close, 10)
        return await asked

    assert asyncio.run(ask()).outputs[0].array.tolist() == given.tolist()


def test_a_device_that_is_lost_takes_the_model_down(serve_either: Serve) -> None:
    asked = Askers(serve_either("simple", gated=True))
    asked.served.gate.error = DeviceLost("the GPU does not answer")

    async def ask() -> list[object]:
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


def test_who_gives_up_twice_takes_nobody_with_it(serve: Serve) -> None:
    """Two requests are one batch at the engine, and the caller of one is impatient."""
    served = serve("simple_dynbatch", gated=True)

    async def ask() -> tuple[object, object]:
        tasks = [asyncio.create_task(served.ask()) for _ in range(4)]
        await asyncio.to_thread(served.gate.entered.wait)
        for _ in range(3):
            tasks[0].cancel()
            await asyncio.sleep(0.01)
        assert not tasks[0].done(), "the engine still reads its inputs"
        served.gate.open.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        return answers[0], answers[1]

    given_up, other = asyncio.run(ask())

    assert isinstance(given_up, asyncio.CancelledError)
    assert isinstance(other, InferResponse)
    assert served.scheduler.gate.inside == served.scheduler.pending == 0
    assert asyncio.run(served.ask())
