"""Many calls at once, and calls that never end: no client of gRPC suffers from another."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from tests import http2
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

SERVICE = "/inference.GRPCInferenceService"
CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("triton")
    models = shared / "data" / "triton" / "models"
    (repository / "simple").symlink_to(models / "simple")
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
        http2.begin(connection, f"{SERVICE}/{method}", range(1, 1024, 2))
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
