"""tritonclient's inference: sync, async, in streams and in shared memory, over HTTP and gRPC."""

import asyncio
import base64
import queue
from collections.abc import AsyncIterator

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tests.clients.conftest import FIRST, ONES, address, check_sums, make_input, make_pair
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

pytestmark = pytest.mark.real

RNG = np.random.default_rng(5)
AIO = {
    tritonclient.http: tritonclient.http.aio,
    tritonclient.grpc: tritonclient.grpc.aio,
}


@pytest.mark.parametrize("version", ["1", ""])
def test_ids_batches_versions_and_outputs(client, protocol, version):
    pair = RNG.integers(-99, 99, (2, 8, 16), np.int32)
    inputs = make_pair(protocol, *pair)
    result = client.infer("simple", inputs, model_version=version, request_id="7")
    check_sums(result, *pair)
    response = result.get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "7"
    outputs = [protocol.InferRequestedOutput("OUTPUT1")]
    result = client.infer("simple", inputs, model_version=version, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), pair[0] - pair[1])
    assert result.as_numpy("OUTPUT0") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client, protocol, algorithm):
    pair = np.zeros((2, 8, 16), np.int32)
    names = ["compression_algorithm"]
    if protocol is tritonclient.http:
        names = ["request_compression_algorithm", "response_compression_algorithm"]
    check_sums(
        client.infer("simple", make_pair(protocol, *pair), **dict.fromkeys(names, algorithm)), *pair
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_classification(client, protocol, batch):
    sent = RNG.random((batch, 3, 224, 224), np.float32)
    inputs = [make_input(protocol, "data", sent, "FP32")]
    scores = client.infer("tiny_classifier", inputs).as_numpy("prob")
    outputs = [protocol.InferRequestedOutput("prob", class_count=3)]
    best = client.infer("tiny_classifier", inputs, outputs=outputs).as_numpy("prob")
    assert best.shape == (batch, 3)
    for row, texts in zip(scores, best, strict=True):
        values, indices, labels = zip(*(text.decode().split(":") for text in texts), strict=True)
        assert [int(index) for index in indices] == np.argsort(-row)[:3].tolist()
        assert list(values) == [f"{score:f}" for score in np.sort(row)[:-4:-1]]
        assert all(labels)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("simple_dynbatch", {}),
        ("simple_cache", {}),
        ("simple_prio", {"priority": 1, "timeout": 10**6}),
    ],
)
def test_queues_and_caches_answer_alike(client, protocol, model, options):
    for _ in range(2):
        check_sums(client.infer(model, make_pair(protocol), **options))


def test_ensembles_and_timeouts(client, protocol):
    result = client.infer("simple_ensemble", make_pair(protocol))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * FIRST)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 2 * ONES)
    with pytest.raises(InferenceServerException, match="Request timeout expired"):
        # A batch of one waits 1000 us for more requests, and this one allows 1 us.
        client.infer("simple_prio", make_pair(protocol), timeout=1)


def test_many_requests_at_once(server, client, protocol):
    """With threads over HTTP, callbacks over gRPC, and with asyncio."""
    pairs = [(FIRST + n, ONES * n) for n in range(20)]
    if protocol is tritonclient.http:
        requests = [client.async_infer("simple", make_pair(protocol, *pair)) for pair in pairs]
        for request, pair in zip(requests, pairs, strict=True):
            check_sums(request.get_result(), *pair)
    else:
        answers = queue.SimpleQueue()
        for n, pair in enumerate(pairs):
            client.async_infer(
                "simple",
                make_pair(protocol, *pair),
                request_id=str(n),
                callback=lambda result, error: answers.put(error or result),
            )
        results = [answers.get(timeout=60) for _ in pairs]
        assert len({result.get_response().id for result in results}) == len(pairs)
        for result in results:
            check_sums(result, *pairs[int(result.get_response().id)])
    aio = AIO[protocol]

    async def infer() -> None:
        async with aio.InferenceServerClient(address(server, aio)) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(
                *(client.infer("simple", make_pair(aio, FIRST, ONES * n)) for n in range(64))
            )
            for n, result in enumerate(results):
                check_sums(result, FIRST, ONES * n)
            with pytest.raises(InferenceServerException, match="'nobody' is not found"):
                await client.infer("nobody", make_pair(aio))

    asyncio.run(infer())


def test_a_cancelled_request(server):
    grpc = tritonclient.grpc.aio

    async def infer() -> None:
        async with grpc.InferenceServerClient(address(server, grpc)) as client:
            # The server waits 100 ms for a batch, and the client does not.
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                await client.infer("simple_dynbatch", make_pair(grpc), client_timeout=0.02)
            check_sums(await client.infer("simple", make_pair(grpc)))

    asyncio.run(infer())


def test_a_stream_answers_in_order_and_goes_on_after_an_error(server):
    grpc = tritonclient.grpc
    requests = [
        {
            "model_name": "nobody" if n == 4 else "simple",
            "inputs": make_pair(grpc, FIRST, ONES * n),
            "request_id": str(n),
        }
        for n in range(30)
    ]

    def check(n, result, error) -> None:
        if n == 4:
            assert result is None
            assert "unknown model: 'nobody' is not found" in error.message()
            return
        assert error is None
        assert result.get_response().id == str(n)
        assert result.get_response().parameters["triton_final_response"].bool_param
        check_sums(result, FIRST, ONES * n)

    answers = queue.SimpleQueue()
    with grpc.InferenceServerClient(address(server, grpc)) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for request in requests:
            client.async_stream_infer(**request)
        for n in range(len(requests)):
            check(n, *answers.get(timeout=60))
        client.stop_stream()

    async def send() -> AsyncIterator[dict]:
        for request in requests:
            yield request

    async def infer() -> None:
        async with grpc.aio.InferenceServerClient(address(server, grpc)) as client:
            found = [answer async for answer in client.stream_infer(send())]
        assert len(found) == len(requests)
        for n, answer in enumerate(found):
            check(n, *answer)

    asyncio.run(infer())


@pytest.mark.parametrize("sequence", [1001, "a name"])
def test_a_sequence(client, protocol, sequence):
    def infer(value: int, **options: bool) -> int:
        tensor = make_input(protocol, "INPUT", np.full((1, 1), value, np.int32))
        result = client.infer("simple_sequence", [tensor], sequence_id=sequence, **options)
        return int(result.as_numpy("OUTPUT")[0, 0])

    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        infer(5)
    # The model adds 1 at the start.
    assert [infer(5, sequence_start=True), infer(6), infer(7, sequence_end=True)] == [6, 6, 7]


def test_sequences_in_a_stream(server):
    grpc, answers = tritonclient.grpc, queue.SimpleQueue()
    with grpc.InferenceServerClient(address(server, grpc)) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for sequence in (2001, 2002):
            for value in (1, 2):
                client.async_stream_infer(
                    "simple_sequence",
                    [make_input(grpc, "INPUT", np.full((1, 1), value, np.int32))],
                    request_id=f"{sequence}-{value}",
                    sequence_id=sequence,
                    sequence_start=value == 1,
                    sequence_end=value == 2,
                )
        found = {}
        for _ in range(4):
            result, error = answers.get(timeout=60)
            assert error is None
            found[result.get_response().id] = int(result.as_numpy("OUTPUT")[0, 0])
        client.stop_stream()
    assert found == dict.fromkeys(("2001-1", "2001-2", "2002-1", "2002-2"), 2)


@pytest.fixture
def regions(client):
    """Regions that the server knows, for two inputs, two outputs and three strings."""
    regions = {}
    for name, size in {"fovea_in": 128, "fovea_out": 128, "fovea_words": 20}.items():
        regions[name] = shm.create_shared_memory_region(name, f"/{name}", size)
        client.register_system_shared_memory(name, f"/{name}", size)
    yield regions
    client.unregister_system_shared_memory()
    for region in regions.values():
        shm.destroy_shared_memory_region(region)


def test_shared_memory(client, protocol, regions):
    inputs = [protocol.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    outputs = [protocol.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
    for n in range(2):
        inputs[n].set_shared_memory("fovea_in", 64, offset=64 * n)
        outputs[n].set_shared_memory("fovea_out", 64, offset=64 * n)
    for n in range(3):
        shm.set_shared_memory_region(regions["fovea_in"], [FIRST + n, ONES])
        client.infer("simple", inputs, outputs=outputs)
        found = shm.get_contents_as_numpy(regions["fovea_out"], np.int32, [2, 16])
        np.testing.assert_array_equal(found, np.concatenate([FIRST + n + 1, FIRST + n - 1]))
    # One input in the region, and one in the request.
    mixed = [inputs[0], make_input(protocol, "INPUT1", 2 * ONES)]
    check_sums(client.infer("simple", mixed), FIRST + 2, 2 * ONES)
    words = np.array([[b"one", b"", b"three"]], np.object_)
    shm.set_shared_memory_region(regions["fovea_words"], [serialize_byte_tensor(words)])
    tensor = protocol.InferInput("INPUT0", [1, 3], "BYTES")
    tensor.set_shared_memory("fovea_words", 20)
    result = client.infer("identity_bytes", [tensor])
    assert result.as_numpy("OUTPUT0").tolist() == words.tolist()
    inputs[1].set_shared_memory("fovea_in", 64, offset=2**40)
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        client.infer("simple", inputs)
    client.unregister_system_shared_memory("fovea_in")
    client.unregister_system_shared_memory("never_registered")
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        client.infer("simple", mixed)
    status = client.get_system_shared_memory_status()
    assert {"fovea_out", "fovea_words"} == (
        {each["name"] for each in status} if isinstance(status, list) else {*status.regions}
    )


def test_cuda_memory_without_a_gpu(client):
    status = client.get_cuda_shared_memory_status()
    assert not (status if isinstance(status, list) else status.regions)
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="failed to register"):
        client.register_cuda_shared_memory("gpu", base64.b64encode(bytes(64)), 0, 64)
