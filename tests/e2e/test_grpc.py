"""gRPC on the wire: sizes, compression, cancellation, streams, health, and a server that stops."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.keyed import until
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.real

MODELS = ("simple", "identity_fp32", "onnx_zero_1_float32_queue")
# Its queue takes one request, and waits a second for more to make a batch of.
QUEUE = "onnx_zero_1_float32_queue"
SERVICE = "/inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("triton")
    for name in MODELS:
        (repository / name).symlink_to(shared / "data" / "triton" / "models" / name)
    return repository


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory) -> Iterator[RunningServer]:
    flags = ("--model-control-mode=explicit", "--load-model=*")
    server = start_server(repository, tmp_path_factory.mktemp("log"), flags)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def client(server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address(server)) as client:
        yield client


@pytest.fixture
def channel(server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address(server)) as channel:
        yield channel


def address(server: RunningServer) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def floats(array: np.ndarray) -> list[triton.InferInput]:
    tensor = triton.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def queued() -> messages.ModelInferRequest:
    message = messages.ModelInferRequest(model_name=QUEUE, id="queued")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
    message.raw_input_contents.append(bytes(8))
    return message


def waiting(server: RunningServer) -> bool:
    line = f'nv_inference_pending_request_count{{model="{QUEUE}",version="1"}} 1'
    return line in server.metrics().splitlines()


def test_every_method_of_the_service_is_there(channel):
    methods = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert len(methods) == 20
    for name in methods:
        try:
            list(channel.unary_stream(f"{SERVICE}/{name}")(b""))
        except grpc.RpcError as error:
            told = error.details()
        else:
            told = ""
        assert told != "Method not found!", name


def test_messages_may_be_large(client):
    sent = np.random.default_rng(0).random((3, 2_000_000), np.float32)
    got = client.infer("identity_fp32", floats(sent)).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(got, sent)


def test_bytes_that_are_no_message_are_refused(channel):
    for rpc in ("ModelInfer", "ServerMetadata"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{SERVICE}/{rpc}")(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        told = f"the request is not a inference.{rpc}Request message"
        assert caught.value.details() == told
    (answer,) = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(iter([b"\xff\xff\xff"]))
    assert messages.ModelStreamInferResponse.FromString(answer).error_message


def test_a_client_that_leaves_frees_its_place_in_the_queue(server, client, channel):
    infer = channel.unary_unary(
        f"{SERVICE}/ModelInfer", messages.ModelInferRequest.SerializeToString
    )
    call = infer.future(queued())
    until(lambda: waiting(server))
    with pytest.raises(triton.InferenceServerException, match="Exceeds maximum queue size"):
        client.infer(QUEUE, floats(np.zeros((1, 2), np.float32)))
    call.cancel()
    until(lambda: not waiting(server))
    stream = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer", messages.ModelInferRequest.SerializeToString
    )
    streamed = stream(iter([queued()]))
    until(lambda: waiting(server))
    streamed.cancel()
    until(lambda: not waiting(server))
    (counted,) = client.get_inference_statistics(QUEUE).model_stats
    assert counted.execution_count == 0, "it left before its time"
    assert client.infer(QUEUE, floats(np.zeros((1, 2), np.float32))) is not None


def test_a_client_that_leaves_its_answers_unread(client, channel):
    """The log has no traceback of it: see the fixture `server`."""
    message = messages.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 1_000_000))
    message.raw_input_contents.append(bytes(4_000_000))
    before = client.get_inference_statistics("identity_fp32").model_stats[0].inference_count
    stream = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer", messages.ModelInferRequest.SerializeToString
    )
    call = stream(iter([message] * 40))
    until(
        lambda: (
            client.get_inference_statistics("identity_fp32").model_stats[0].inference_count
            >= before + 14
        )
    )
    call.cancel()
    assert client.is_server_live()


def test_models_with_any_number_of_answers_are_refused(client):
    client.load_model("identity_fp32", config='{"model_transaction_policy": {"decoupled": true}}')
    told = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    with pytest.raises(triton.InferenceServerException, match=told) as caught:
        client.infer("identity_fp32", floats(np.zeros((1, 2), np.float32)))
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    client.load_model("identity_fp32")
    assert client.infer("identity_fp32", floats(np.zeros((1, 2), np.float32))) is not None


def test_a_strict_stream_ends_with_its_first_error(client):
    answers = queue.SimpleQueue()
    client.start_stream(
        lambda result, error: answers.put(error), headers={"triton_grpc_error": "true"}
    )
    client.async_stream_infer("nobody", floats(np.zeros((1, 2), np.float32)))
    error = answers.get(timeout=30)
    assert error.status() == "StatusCode.NOT_FOUND"
    assert error.message() == "Request for unknown model: 'nobody' is not found"
    client.stop_stream()


def test_what_was_accepted_is_answered_before_the_server_stops(repository, serve):
    """And neither an idle stream nor a watcher keeps it from stopping."""
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=600")
    server = serve(repository, *flags)
    with grpc.insecure_channel(address(server)) as channel:
        stream = channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            messages.ModelInferRequest.SerializeToString,
            messages.ModelStreamInferResponse.FromString,
        )
        sent: queue.SimpleQueue[messages.ModelInferRequest] = queue.SimpleQueue()
        idle = stream(iter(sent.get, None))
        busy = stream(iter([queued()]))
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(watch).hex() == "0801"
        until(lambda: waiting(server))
        assert server.stop() == 0
        (answer,) = busy
        assert answer.error_message == ""
        assert answer.infer_response.id == "queued"
        assert list(idle) == []
        assert [status.hex() for status in watch] == ["0802"]
        sent.put(None)


def test_restricted_protocols(repository, serve):
    server = serve(
        repository,
        "--grpc-restricted-protocol=model-repository,statistics:admin=secret",
        "--grpc-restricted-protocol=inference:user=word",
    )
    word = {"triton-grpc-protocol-user": "word"}
    inputs = floats(np.zeros((1, 2), np.float32))
    with triton.InferenceServerClient(address(server)) as client:
        told = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
        for wrong in ({}, word, {"triton-grpc-protocol-admin": "guess"}):
            with pytest.raises(triton.InferenceServerException, match=told) as caught:
                client.get_model_repository_index(headers=wrong)
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert client.get_model_repository_index({"triton-grpc-protocol-admin": "secret"}).models
        assert client.get_model_metadata("simple").name == "simple"
        assert client.infer("identity_fp32", inputs, headers=word) is not None
        answers = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put(error))
        assert "protocol-user" in answers.get(timeout=30).message()
        client.stop_stream()


@pytest.mark.parametrize(("level", "compressed"), [("high", True), ("none", False)])
def test_answers_are_compressed_where_the_operator_says_so(repository, serve, level, compressed):
    server = serve(repository, f"--grpc-infer-response-compression-level={level}")
    with (
        counting_relay(server.grpc_port) as (port, counted),
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        got = client.infer("identity_fp32", floats(np.zeros((1, 1_000_000), np.float32)))
        assert not got.as_numpy("OUTPUT0").any()
    assert (counted() < 100_000) == compressed


@contextlib.contextmanager
def counting_relay(port: int) -> Iterator[tuple[int, Callable[[], int]]]:
    """A port that leads to another, and how many bytes have come back from there."""
    listener = socket.create_server(("127.0.0.1", 0))
    total = 0

    def pump(source: socket.socket, sink: socket.socket, *, count: bool) -> None:
        nonlocal total
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                total += len(data) if count else 0
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            back = threading.Thread(target=pump, args=(far, near), kwargs={"count": True})
            back.start()
            pump(near, far, count=False)
            back.join()

    thread = threading.Thread(target=accept)
    thread.start()
    with listener:
        yield listener.getsockname()[1], lambda: total
    thread.join()
