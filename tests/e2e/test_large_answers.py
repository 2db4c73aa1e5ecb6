"""Answers that are much larger than their requests: what the server holds of them is bounded."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import httpx
import numpy as np
import onnx
import onnx.parser
import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.slow

SERVICE = "/inference.GRPCInferenceService"
MB = 1 << 20
SIZE = 16 * MB
ELEMENTS = SIZE // 4
LIMIT_MB = 64
# Each answer is once an array, once a message and once gRPC's copy of it while it is sent.
MAX_MB = 4 * LIMIT_MB


def wide(repository: Path, name: str = "wide", elements: int = ELEMENTS) -> None:
    """Write a model that answers one number with many copies of it."""
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    wide (float[1] X) => (float[{elements}] Y) <int64[1] shape = {{{elements}}}> {{
        Y = Expand (X, shape)
    }}"""
    (repository / name / "1").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(text), repository / name / "1" / "model.onnx")


ENSEMBLE = f"""
platform: "ensemble"
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ {ELEMENTS} ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "wide" model_version: -1
  input_map {{ key: "X" value: "IN" }} output_map {{ key: "Y" value: "OUT" }}
}} ] }}
"""


@pytest.fixture
def server(tmp_path, serve) -> Iterator[RunningServer]:
    repository = tmp_path / "models"
    wide(repository)
    wide(repository, "wider", ELEMENTS + 1)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    server = serve(repository, f"--max-inflight-mb={LIMIT_MB}")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def held(server: RunningServer) -> float:
    return server.metric("fovea_inflight_bytes")


def message(model: str = "wide") -> messages.ModelInferRequest:
    asked = messages.ModelInferRequest(model_name=model)
    asked.inputs.add(name="X" if model == "wide" else "IN", datatype="FP32", shape=(1,))
    asked.raw_input_contents.append(np.float32(2).tobytes())
    return asked


def stream(channel: grpc.Channel, count: int, model: str) -> Iterator[bytes]:
    call = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer", messages.ModelInferRequest.SerializeToString
    )
    answers: Iterator[bytes] = call(iter([message(model)] * count))
    return answers


@contextmanager
def streams(server: RunningServer, count: int, model: str) -> Iterator[list[Iterator[bytes]]]:
    """Streams of twelve requests, over a connection each."""
    with ExitStack() as stack:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        target = f"127.0.0.1:{server.grpc_port}"
        channels = [
            stack.enter_context(grpc.insecure_channel(target, options)) for _ in range(count)
        ]
        yield [stream(channel, 12, model) for channel in channels]


@pytest.mark.parametrize("model", ["wide", "both"])
def test_streams_that_do_not_read_hold_no_more_than_they_may(server, model):
    before = server.memory_mb()
    with streams(server, 10, model) as unread:
        until(lambda: held(server) > LIMIT_MB * MB / 2)
        assert held(server) <= (LIMIT_MB + 1) * MB
        assert len(unread) == 10
    until(lambda: held(server) == 0)
    assert server.memory_mb("VmHWM") - before < MAX_MB
    with streams(server, 2, "wide") as unread:
        until(lambda: held(server) > 2 * SIZE)
        with streams(server, 1, "wide") as (read,):
            sizes = [len(answer) for answer in read]
        assert len(unread) == 2
    # One that is read goes on beside those that are not.
    assert len(sizes) == 12
    assert min(sizes) > SIZE
    assert server.memory_mb("VmHWM") < 2 * MAX_MB


async def over_http(server: RunningServer, model: str) -> int:
    given = {"name": "X" if model == "wide" else "IN", "datatype": "FP32", "shape": [1]}
    body = {"inputs": [given | {"data": [2.0]}], "parameters": {"binary_data_output": True}}
    url, plain = f"{server.url}/v2/models/{model}/infer", {"Accept-Encoding": "identity"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url, json=body, headers=plain) as answer,
    ):
        assert answer.status_code == 200, "those that wait are answered"
        return sum([len(piece) async for piece in answer.aiter_raw()])


async def over_grpc(server: RunningServer, model: str) -> int:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        call = channel.unary_unary(
            f"{SERVICE}/ModelInfer", messages.ModelInferRequest.SerializeToString
        )
        return len(await call(message(model)))


@pytest.mark.parametrize(
    ("ask", "model"), [(over_http, "wide"), (over_http, "both"), (over_grpc, "wide")]
)
def test_many_clients_wait_for_their_turn(server, ask, model):
    before = server.memory_mb()

    async def ask_all() -> list[int]:
        return await asyncio.gather(*(ask(server, model) for _ in range(30)))

    assert min(asyncio.run(ask_all())) > SIZE
    until(lambda: held(server) == 0)
    assert server.memory_mb("VmHWM") - before < MAX_MB


def test_outputs_that_are_too_long_for_json_are_refused_at_once(server):
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [2.0]}
    for path, body in (("infer", {"inputs": [tensor]}), ("generate", {"X": 2.0})):
        answer = httpx.post(f"{server.url}/v2/models/wider/{path}", json=body, timeout=60)
        assert answer.status_code == 413
        assert "request binary data" in answer.json()["error"]
    until(lambda: held(server) == 0)
