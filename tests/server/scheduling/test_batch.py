"""Requests that wait, meet and are answered, on real models."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import Served, rows, strings

from fovea_server.tensors.messages import InferResponse, RequestedOutput

Serve = Callable[..., Served]


def arrays(response: InferResponse) -> list[list[Any]]:
    return [output.array.tolist() for output in response.outputs]


def batches(served: Served) -> dict[int, int]:
    """How many executions had so many rows."""
    return {size: batch.compute_infer.count for size, batch in served.statistics.batches.items()}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_answers_in_the_order_of_the_configuration(serve: Serve, backend: str) -> None:
    served = serve("simple", backend=backend)
    request = served.request(rows(0, 2), rows(7, 2), id="abc")
    request.outputs = [RequestedOutput("OUTPUT1"), RequestedOutput("OUTPUT0")]

    response = asyncio.run(served.scheduler.infer(request))

    assert (response.model_name, response.model_version, response.id) == ("simple", "1", "abc")
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert arrays(response) == [
        (rows(0, 2) + rows(7, 2)).tolist(),
        (rows(0, 2) - rows(7, 2)).tolist(),
    ]


def test_only_what_is_asked_for_is_answered(serve: Serve) -> None:
    served = serve("simple")

    response = asyncio.run(served.infer(rows(0), rows(0), outputs=[RequestedOutput("OUTPUT1")] * 2))

    assert [output.name for output in response.outputs] == ["OUTPUT1"]


def test_every_answer_is_its_own_while_the_lane_opens(serve: Serve) -> None:
    served = serve("simple")

    async def ask() -> None:
        for wave in range(20):
            answers = await asyncio.gather(
                *[served.infer(rows(wave + at), rows(at)) for at in range(6)]
            )
            for at, answer in enumerate(answers):
                np.testing.assert_array_equal(answer.outputs[0].array, rows(wave + at) + rows(at))

    asyncio.run(ask())

    assert served.statistics.inference_count == served.statistics.success.count == 120
    assert served.statistics.execution_count == 120
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_a_model_without_batches_and_a_zero_size(serve: Serve) -> None:
    zero = serve("onnx_zero_1_float32")
    nothing = asyncio.run(zero.infer(np.zeros((2, 0), np.float32)))
    assert nothing.outputs[0].shape == (2, 0)

    flat = serve("simple_nobatch")
    answer = asyncio.run(flat.infer(rows(0)[0], rows(1)[0]))
    assert answer.outputs[0].shape == (16,)
    assert flat.statistics.inference_count == 1


def test_optional_inputs(serve: Serve) -> None:
    served = serve("input_optional")
    three = [np.full(2, n, np.float32) for n in (1, 2, 3)]

    without = asyncio.run(served.infer(*three))
    with_it = asyncio.run(served.infer(*three, np.full(2, 10, np.float32)))

    assert (arrays(without), arrays(with_it)) == ([[12.0]], [[32.0]])


@pytest.mark.parametrize(
    "texts",
    [(b"\xff\xfe", b"a\0", "hé".encode()), tuple(b"%d" % n for n in range(20_000))],
    ids=["that are no text", "very many"],
)
def test_strings(serve: Serve, texts: tuple[bytes, ...]) -> None:
    served = serve("string_identity")
    elements = strings(*texts)

    answer = asyncio.run(served.infer(elements))

    assert arrays(answer) == [elements.tolist()]


@pytest.mark.parametrize("kind", ["bf16", "fp16", "bool", "uint64", "int8"])
def test_element_types(serve: Serve, kind: str) -> None:
    served = serve(f"identity_{kind}")
    assert served.session is not None
    given = np.ones((2, 3), served.session.inputs[0].numpy_dtype)

    output = asyncio.run(served.infer(given)).outputs[0]

    assert (output.datatype, output.array.dtype) == (kind.upper(), given.dtype)
    np.testing.assert_array_equal(output.array, given)


def test_requests_meet_in_preferred_batches(serve: Serve) -> None:
    served = serve("simple_dynbatch")

    async def ask() -> list[InferResponse]:
        return await asyncio.gather(*[served.infer(rows(at), rows(0)) for at in range(13)])

    answers = asyncio.run(ask())

    for at, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.outputs[0].array, rows(at) + rows(0))
    # By how many are there when a worker looks, it is 4 or 8; the last has no others to wait for.
    sizes = batches(served)
    assert sizes.keys() <= {4, 8, 1}
    assert sizes[1] == 1
    assert served.statistics.execution_count == sum(sizes.values())
    assert served.statistics.inference_count == served.statistics.queue.count == 13


def test_what_differs_in_shape_does_not_meet(serve: Serve) -> None:
    def delayed(config: Any) -> None:
        config.dynamic_batching.max_queue_delay_microseconds = 20_000

    served = serve("onnx_zero_1_float32", change=delayed)

    async def ask() -> list[InferResponse]:
        return await asyncio.gather(
            *[served.infer(np.zeros((2, width), np.float32)) for width in (3, 3, 5)]
        )

    answers = asyncio.run(ask())

    assert [answer.outputs[0].shape for answer in answers] == [(2, 3), (2, 3), (2, 5)]
    assert batches(served) == {4: 1, 2: 1}


def test_an_engine_whose_shapes_are_others_is_reshaped(serve: Serve) -> None:
    """The engine takes and gives [n, 16]; clients see [n, 4, 4]."""

    def square(config: Any) -> None:
        for tensor in (*config.input, *config.output):
            tensor.dims[:] = [4, 4]
            tensor.reshape.shape.append(16)

    served = serve("simple", change=square)
    given = rows(3, 2).reshape(2, 4, 4)

    response = asyncio.run(served.infer(given, given))

    np.testing.assert_array_equal(response.outputs[0].array, 2 * given)
