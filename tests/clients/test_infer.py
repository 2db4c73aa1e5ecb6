"""tritonclient's `infer` and `async_infer`, over HTTP and gRPC."""

import queue

import ml_dtypes
import numpy as np
import pytest
from tests.clients.conftest import make_input, make_pair
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

pytestmark = pytest.mark.real

RNG = np.random.default_rng(5)
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)
WHOLE_NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def sums(result) -> tuple[np.ndarray, np.ndarray]:
    return result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")


def assert_sums(result, first, second) -> None:
    np.testing.assert_array_equal(sums(result), (first + second, first - second))


def test_infer(client, protocol):
    result = client.infer("simple", make_pair(protocol, FIRST, ONES), request_id="7")
    assert_sums(result, FIRST, ONES)
    answer = result.get_response()
    told = answer if isinstance(answer, dict) else {"id": answer.id, "name": answer.model_name}
    assert told["id"] == "7"


@pytest.mark.parametrize("version", ["1", ""])
def test_a_batch_and_a_version(client, protocol, version):
    first, second = RNG.integers(-99, 99, (2, 8, 16), np.int32)
    assert_sums(
        client.infer("simple", make_pair(protocol, first, second), model_version=version),
        first,
        second,
    )


def test_only_the_outputs_that_were_asked_for(client, protocol):
    outputs = [protocol.InferRequestedOutput("OUTPUT1")]
    result = client.infer("simple", make_pair(protocol, FIRST, ONES), outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - ONES)
    assert result.as_numpy("OUTPUT0") is None


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_json_and_binary_in_every_mix(http_client, binary_in, binary_out):
    import tritonclient.http as http

    inputs = make_pair(http, FIRST, ONES, binary_data=binary_in)
    outputs = [
        http.InferRequestedOutput("OUTPUT0", binary_data=binary_out),
        http.InferRequestedOutput("OUTPUT1", binary_data=not binary_out),
    ]
    assert_sums(http_client.infer("simple", inputs, outputs=outputs), FIRST, ONES)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client, protocol, algorithm):
    first, second = np.zeros((2, 8, 16), np.int32)
    how = (
        {"compression_algorithm": algorithm}
        if "grpc" in protocol.__name__
        else {
            "request_compression_algorithm": algorithm,
            "response_compression_algorithm": algorithm,
        }
    )
    assert_sums(client.infer("simple", make_pair(protocol, first, second), **how), first, second)


@pytest.mark.parametrize("kind", [*WHOLE_NUMBERS, "float32", "float64", "float16", "bool"])
def test_every_datatype(client, protocol, kind):
    sent = RNG.integers(0, 2, (2, 3)).astype(kind)
    datatype = np_to_triton_dtype(sent.dtype)
    tensor = make_input(protocol, "INPUT0", sent, datatype)
    got = client.infer(f"identity_{datatype.lower()}", [tensor]).as_numpy("OUTPUT0")
    assert got.dtype == sent.dtype
    np.testing.assert_array_equal(got, sent)


def test_bf16(client, protocol):
    sent = np.array([[1.0, -2.5], [0.0, 3.0]], ml_dtypes.bfloat16)
    got = client.infer("identity_bf16", [make_input(protocol, "INPUT0", sent, "BF16")])
    np.testing.assert_array_equal(got.as_numpy("OUTPUT0"), sent)


def test_strings(client, protocol):
    words = ["", "h\u00e9llo", "a\0b", "x" * 300]
    sent = np.array([[word.encode() for word in words]], np.object_)
    got = client.infer("identity_bytes", [make_input(protocol, "INPUT0", sent, "BYTES")])
    assert got.as_numpy("OUTPUT0").tolist() == sent.tolist()


def test_strings_that_are_numbers(client, protocol):
    first = np.array([[str(n).encode() for n in range(16)]], np.object_)
    inputs = [make_input(protocol, f"INPUT{n}", first, "BYTES") for n in range(2)]
    result = client.infer("simple_string", inputs)
    assert [int(word) for word in result.as_numpy("OUTPUT0")[0]] == [2 * n for n in range(16)]


def test_no_elements_at_all(client, protocol):
    sent = np.zeros((0, 4), np.float32)
    got = client.infer("identity_fp32", [make_input(protocol, "INPUT0", sent, "FP32")])
    assert got.as_numpy("OUTPUT0").shape == (0, 4)


@pytest.mark.parametrize("batch", [1, 3])
def test_classification(client, protocol, batch):
    sent = RNG.random((batch, 3, 224, 224), np.float32)
    inputs = [make_input(protocol, "data", sent, "FP32")]
    scores = client.infer("tiny_classifier", inputs).as_numpy("prob")
    outputs = [protocol.InferRequestedOutput("prob", class_count=3)]
    best = client.infer("tiny_classifier", inputs, outputs=outputs).as_numpy("prob")
    assert best.shape == (batch, 3)
    for row, told in zip(scores, best, strict=True):
        parts = [word.decode().split(":") for word in told]
        assert [int(part[1]) for part in parts] == np.argsort(-row)[:3].tolist()
        assert [part[0] for part in parts] == [f"{score:f}" for score in np.sort(row)[:-4:-1]]
        assert all(len(part) == 3 for part in parts)  # value:index:label


def test_asynchronously_over_http(http_client):
    import tritonclient.http as http

    pairs = [(FIRST + n, ONES * n) for n in range(20)]
    waiting = [http_client.async_infer("simple", make_pair(http, *pair)) for pair in pairs]
    for each, pair in zip(waiting, pairs, strict=True):
        assert_sums(each.get_result(), *pair)


def test_asynchronously_over_grpc(grpc_client):
    import tritonclient.grpc as grpc

    pairs = {str(n): (FIRST + n, ONES * n) for n in range(20)}
    answers = queue.SimpleQueue()
    for key, pair in pairs.items():
        grpc_client.async_infer(
            "simple",
            make_pair(grpc, *pair),
            request_id=key,
            callback=lambda result, error: answers.put(error or result),
        )
    for _ in range(len(pairs)):
        result = answers.get(timeout=30)
        assert_sums(result, *pairs.pop(result.get_response().id))


def test_ensembles_queues_and_caches_answer_alike(client, protocol):
    for model in ("simple_dynbatch", "simple_cache", "simple_cache"):
        assert_sums(client.infer(model, make_pair(protocol, FIRST, ONES)), FIRST, ONES)
    result = client.infer("simple_ensemble", make_pair(protocol, FIRST, ONES))
    np.testing.assert_array_equal(sums(result), (2 * FIRST, 2 * ONES))
    assert_sums(
        client.infer("simple_prio", make_pair(protocol, FIRST, ONES), priority=1, timeout=10**6),
        FIRST,
        ONES,
    )


def test_a_timeout_in_the_queue(client, protocol):
    with pytest.raises(InferenceServerException, match="Request timeout expired"):
        # A batch of one waits 1000 us for more, and may wait 1.
        client.infer("simple_prio", make_pair(protocol, FIRST, ONES), timeout=1)


WRONG = [
    ("nobody", [("INPUT0", (1, 16)), ("INPUT1", (1, 16))], "unknown model: 'nobody' is not found"),
    ("simple", [("INPUT0", (1, 16))], "expected 2 inputs but got 1 inputs for model 'simple'"),
    ("simple", [("INPUT0", (1, 8)), ("INPUT1", (1, 8))], "unexpected shape for input"),
    ("simple", [("INPUT0", (9, 16)), ("INPUT1", (9, 16))], "batch-size must be <= 8 for 'simple'"),
    ("simple", [("INPUT0", (1, 16)), ("OTHER", (1, 16))], "OTHER"),
]


@pytest.mark.parametrize(("model", "shapes", "told"), WRONG)
def test_errors_by_their_text(client, protocol, model, shapes, told):
    inputs = [make_input(protocol, name, np.zeros(s, np.int32), "INT32") for name, s in shapes]
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs)
    assert told in caught.value.message()
    assert client.is_server_live()


def test_a_wrong_datatype_and_output(client, protocol):
    wrong = [make_input(protocol, f"INPUT{n}", ONES.astype(np.int64), "INT64") for n in range(2)]
    with pytest.raises(InferenceServerException, match="data-type is 'INT64', but model 'simple'"):
        client.infer("simple", wrong)
    outputs = [protocol.InferRequestedOutput("OUTPUT9")]
    with pytest.raises(InferenceServerException, match="unexpected inference output 'OUTPUT9'"):
        client.infer("simple", make_pair(protocol, FIRST, ONES), outputs=outputs)
