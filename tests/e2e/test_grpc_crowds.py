"""Many calls at once, and calls that never end: no client of gRPC suffers from another."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from tests import http2
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.real

SERVICE = "/inference.GRPCInferenceService"
CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("triton")
    models = shared / "data" / "triton" / "models"
    for name in ("simple", "identity_fp32"):
        (repository / name).symlink_to(models / name)
    log = tmp_path_factory.mktemp("log")
    server = start_server(repository, log, ("--body-timeout-s=2", "--max-queue=1000000"))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def simple() -> bytes:
    message = messages.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=(1, 16))
        message.raw_input_contents.append(bytes(64))
    return message.SerializeToString()


def burst(server: RunningServer, calls: int, timeout: float | None = None) -> Counter[str]:
    """The statuses of so many calls that begin at once, on a connection of their own."""

    async def run() -> Counter[str]:
        # A connection is shared by channels of the same options.
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{server.grpc_port}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
            began = [infer(simple(), timeout=timeout) for _ in range(calls)]
            return Counter([(await call.code()).name for call in began])

    return asyncio.run(run())


def test_a_burst_is_answered_whole(server):
    assert burst(server, 2000) == {"OK": 2000}


def test_deadlines_of_one_client_end_no_call_of_another(server):
    async def both() -> Counter[str]:
        mine = asyncio.to_thread(burst, server, 300)
        others = asyncio.to_thread(burst, server, 2000, 0.02)
        return (await asyncio.gather(mine, others))[0]

    assert asyncio.run(both()) == {"OK": 300}


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_calls_without_a_message_lock_nobody_out(server, method):
    connections = [http2.connected(server.grpc_port) for _ in range(12)]
    for connection in connections:
        # As many as the server lets one connection have.
        http2.begin(connection, f"{SERVICE}/{method}", range(1, 201, 2))
    assert burst(server, 100) == {"OK": 100}
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        assert channel.unary_unary(CHECK)(b"", timeout=30) == SERVING
    for connection in connections:
        connection.close()


def test_a_message_that_stops_arriving_ends_its_call(server):
    with http2.connected(server.grpc_port) as connection:
        http2.begin(connection, f"{SERVICE}/ModelInfer", [1])
        part = http2.begun_message(50_000_000, 16_000)
        connection.sendall(http2.frame(http2.DATA, 0, 1, part))
        answered = b""
        while b"did not arrive within 2 s" not in answered:
            received = connection.recv(65_536)
            assert received
            answered += received


def test_clients_that_leave_before_their_answer_leave_no_traceback(server):
    for _ in range(20):
        with http2.connected(server.grpc_port) as connection:
            message = simple()
            data = http2.begun_message(len(message), 0) + message
            for stream in range(1, 101, 2):
                http2.begin(connection, f"{SERVICE}/ModelInfer", [stream])
                connection.sendall(http2.frame(http2.DATA, 1, stream, data))
            connection.recv(1)
    assert burst(server, 1) == {"OK": 1}
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("resets", [True, False])
def test_clients_that_leave_amid_a_large_answer_leave_no_traceback(server, resets):
    message = messages.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 1 << 20))
    message.raw_input_contents.append(bytes(4 << 20))
    data = message.SerializeToString()
    before = server.log.read_text()
    with http2.connected(server.grpc_port) as connection:
        sender = http2.Sender(connection, f"{SERVICE}/ModelInfer")
        sender.send(http2.begun_message(len(data), 0) + data)
        connection.sendall(http2.frame(http2.DATA, http2.END_STREAM, 1))
        # The client gives no room for more of the answer than its beginning.
        while not sender.answered:
            sender.receive()
        if resets:
            connection.sendall(http2.frame(http2.RST_STREAM, 0, 1, http2.CANCEL))
    assert burst(server, 1) == {"OK": 1}
    end = time.monotonic() + 60
    while (log := server.log.read_text().removeprefix(before)).count("/ModelInfer") < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "Traceback" not in log
    assert "ExecuteBatchError" not in log
