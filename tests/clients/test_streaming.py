"""tritonclient's streams over gRPC, and sequences, which mostly travel in them."""

import queue

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tests.clients.conftest import make_input, make_pair
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.real

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)


@pytest.fixture
def stream(grpc_client):
    """A client with an open stream, and what comes out of it."""
    answers = queue.SimpleQueue()
    grpc_client.start_stream(callback=lambda result, error: answers.put((result, error)))
    yield grpc_client, answers
    grpc_client.stop_stream()


def step(value: int) -> list:
    return [make_input(grpc, "INPUT", np.full((1, 1), value, np.int32), "INT32")]


def test_every_request_is_answered_in_order_and_marked_as_final(stream):
    client, answers = stream
    for n in range(30):
        client.async_stream_infer("simple", make_pair(grpc, FIRST, ONES * n), request_id=str(n))
    for n in range(30):
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().id == str(n)
        assert result.get_response().parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + n)


def test_an_error_is_an_answer_and_the_stream_goes_on(stream):
    client, answers = stream
    client.async_stream_infer("nobody", make_pair(grpc, FIRST, ONES), request_id="wrong")
    result, error = answers.get(timeout=30)
    assert result is None
    assert "unknown model: 'nobody' is not found" in error.message()
    client.async_stream_infer("simple", make_pair(grpc, FIRST, ONES))
    result, error = answers.get(timeout=30)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - ONES)


@pytest.mark.parametrize("sequence", [1001, "a name"])
def test_a_sequence(client, protocol, sequence):
    # The model adds its START control to the value.
    outputs = []
    for value, start, end in ((5, True, False), (6, False, False), (7, False, True)):
        tensor = make_input(protocol, "INPUT", np.full((1, 1), value, np.int32), "INT32")
        result = client.infer(
            "simple_sequence",
            [tensor],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        outputs.append(int(result.as_numpy("OUTPUT")[0, 0]))
    assert outputs == [6, 6, 7]


def test_sequences_in_a_stream(stream):
    client, answers = stream
    for sequence in (2001, 2002):
        for value, start, end in ((1, True, False), (2, False, True)):
            client.async_stream_infer(
                "simple_sequence",
                step(value),
                request_id=f"{sequence}-{value}",
                sequence_id=sequence,
                sequence_start=start,
                sequence_end=end,
            )
    found = {}
    for _ in range(4):
        result, error = answers.get(timeout=30)
        assert error is None
        found[result.get_response().id] = int(result.as_numpy("OUTPUT")[0, 0])
    assert found == {"2001-1": 2, "2001-2": 2, "2002-1": 2, "2002-2": 2}


def test_a_sequence_must_be_started(client, protocol):
    tensor = make_input(protocol, "INPUT", np.zeros((1, 1), np.int32), "INT32")
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        client.infer("simple_sequence", [tensor], sequence_id=3001)
