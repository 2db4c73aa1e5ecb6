"""What a gRPC client may not do to the server: fill its memory, or its headers."""

from collections.abc import Iterator

import grpc
import httpx
import pytest
from tests.e2e.test_grpc import QUEUE, SERVICE, queued, until
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("triton")
    for name in (QUEUE, "identity_fp32"):
        (repository / name).symlink_to(shared / "data" / "triton" / "models" / name)
    server = start_server(repository, tmp_path_factory.mktemp("log"), ("--max-held-mb=1",))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def channel(server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def padded() -> messages.ModelInferRequest:
    """A request that waits for a second, and holds .7 MB meanwhile."""
    message = queued()
    message.parameters["padding"].string_param = "x" * 700_000
    return message


def ask(channel: grpc.Channel, rpc: str, message: object) -> grpc.UnaryUnaryMultiCallable:
    call = channel.unary_unary(f"{SERVICE}/{rpc}", lambda given: given.SerializeToString())
    return call.future(message, compression=grpc.Compression.Gzip)


def refusal(channel: grpc.Channel, rpc: str, message: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, rpc, message).result()
    return caught.value.code(), caught.value.details()


def test_requests_that_hold_more_than_they_may_are_refused(server, channel):
    first = ask(channel, "ModelInfer", padded())
    until(lambda: pending(server))
    code, told = refusal(channel, "ModelInfer", padded())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "held already, of at most 1 MiB" in told
    assert told.endswith("raise --max-held-mb")
    stream = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer",
        messages.ModelInferRequest.SerializeToString,
        messages.ModelStreamInferResponse.FromString,
    )
    (answer,) = stream(iter([padded()]))
    assert "held already" in answer.error_message
    first.result()
    ask(channel, "ModelInfer", padded()).result()


def test_what_is_answered_is_not_held_any_more(channel):
    message = messages.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 75_000))
    message.raw_input_contents.append(bytes(300_000))
    for _ in range(10):
        ask(channel, "ModelInfer", message).result()


def test_a_request_that_never_fits_is_refused(channel):
    message = queued()
    message.raw_input_contents[0] = bytes(2_000_000)
    code, _ = refusal(channel, "ModelInfer", message)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("letter", ["x", "ü", "\N{GRINNING FACE}", "%", "\n"])
def test_a_name_that_is_long_on_the_wire_is_told_as_far_as_there_is_room(channel, letter):
    asked = messages.ModelMetadataRequest(name=letter * 3000)
    code, told = refusal(channel, "ModelMetadata", asked)
    assert code is grpc.StatusCode.NOT_FOUND
    assert told.startswith(f"Request for unknown model: '{letter * 100}")
    assert "\ufffd" not in told


@pytest.mark.parametrize("digits", ["1" * 5000, "9" * 20])
def test_numbers_of_any_length_are_the_client_s_fault(channel, digits):
    asked = messages.TraceSettingRequest()
    asked.settings["trace_rate"].value.append(digits)
    code, told = refusal(channel, "TraceSetting", asked)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "value is out of range" in told


def test_a_verbosity_that_grpc_cannot_tell_is_refused_over_http_too(server, channel):
    answer = httpx.post(f"{server.url}/v2/logging", json={"log_verbose_level": 2**40})
    assert answer.status_code == 400
    assert "log_verbose_level" in answer.json()["error"]
    ask(channel, "LogSettings", messages.LogSettingsRequest()).result()


def pending(server: RunningServer) -> bool:
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    return f'nv_inference_pending_request_count{{model="{QUEUE}",version="1"}} 1' in metrics
