"""A gRPC client cannot fill the memory, lock others out, or leave anything behind.

The attacker speaks HTTP/2 by hand, since no client of gRPC sends half a message.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from tests import http2
from tests.e2e.test_grpc import QUEUE, SERVICE, queued, waiting
from tests.keyed import until
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.real

MIB = 1 << 20
LATE, FULL = b"did not arrive within", b"in flight use"
CHECK, SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory) -> Path:
    models, folder = shared / "data" / "triton" / "models", tmp_path_factory.mktemp("triton")
    for name in (QUEUE, "simple", "identity_fp32"):
        (folder / name).symlink_to(models / name)
    return folder


@pytest.fixture(scope="module")
def started(repository, tmp_path_factory) -> Iterator[Callable[..., RunningServer]]:
    """Start a server with flags; none may have a traceback in its log."""
    folder, running = tmp_path_factory.mktemp("log"), []

    def start(*flags: str) -> RunningServer:
        running.append(start_server(repository, folder, flags))
        return running[-1]

    yield start
    for server in running:
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def small(started) -> RunningServer:
    """A server that holds little."""
    return started("--max-inflight-mb=1")


@pytest.fixture(scope="module")
def crowded(started) -> RunningServer:
    """A server that waits two seconds for a message."""
    return started("--body-timeout-s=2", "--max-queue=1000000")


@pytest.fixture
def start(started) -> Iterator[Callable[..., RunningServer]]:
    """Start a server for one test."""
    running: list[RunningServer] = []

    def run(*flags: str) -> RunningServer:
        running.append(started(*flags))
        return running[-1]

    yield run
    for server in running:
        assert server.stop() == 0


@pytest.fixture
def channel(small) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}") as channel:
        yield channel


def held(server: RunningServer) -> float:
    return server.metric("fovea_inflight_bytes")


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


def test_requests_that_hold_more_than_they_may_are_refused(small, channel):
    first = ask(channel, "ModelInfer", padded())
    until(lambda: waiting(small))
    code, told = refusal(channel, "ModelInfer", padded())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "of at most 1 MiB: retry later" in told
    assert told.endswith("--max-inflight-mb")
    stream = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer",
        messages.ModelInferRequest.SerializeToString,
        messages.ModelStreamInferResponse.FromString,
    )
    (answer,) = stream(iter([padded()]))
    assert "in flight use" in answer.error_message
    first.result()
    ask(channel, "ModelInfer", padded()).result()


def test_what_is_answered_is_not_held_any_more(channel):
    message = messages.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 75_000))
    message.raw_input_contents.append(bytes(300_000))
    for _ in range(10):
        ask(channel, "ModelInfer", message).result()


def never_fits() -> messages.ModelInferRequest:
    message = queued()
    message.raw_input_contents[0] = bytes(2_000_000)
    return message


def rate(digits: str) -> messages.TraceSettingRequest:
    message = messages.TraceSettingRequest()
    message.settings["trace_rate"].value.append(digits)
    return message


@pytest.mark.parametrize(
    ("rpc", "message", "code"),
    [
        ("ModelInfer", never_fits(), grpc.StatusCode.RESOURCE_EXHAUSTED),
        # Names that are long on the wire are told as far as a header has room.
        *(
            ("ModelMetadata", messages.ModelMetadataRequest(name=name), grpc.StatusCode.NOT_FOUND)
            for name in ("x" * 100_000, "ü" * 3000, "😀" * 3000, "%" * 3000, "\n" * 3000)
        ),
        *(
            ("TraceSetting", rate(digits), grpc.StatusCode.INVALID_ARGUMENT)
            for digits in ("1" * 5000, "9" * 20)
        ),
    ],
)
def test_what_is_too_long_is_refused(channel, rpc, message, code):
    found, told = refusal(channel, rpc, message)
    assert found is code
    assert "\ufffd" not in told
    if rpc == "ModelMetadata":
        assert told.startswith(f"Request for unknown model: '{message.name[:100]}")


def test_a_verbosity_that_grpc_cannot_tell_is_refused_over_http_too(small, channel):
    answer = httpx.post(f"{small.url}/v2/logging", json={"log_verbose_level": 2**40})
    assert answer.status_code == 400
    ask(channel, "LogSettings", messages.LogSettingsRequest()).result()


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


def test_a_burst_is_answered_whole(crowded):
    assert burst(crowded, 2000) == {"OK": 2000}


def test_deadlines_of_one_client_end_no_call_of_another(crowded):
    async def both() -> Counter[str]:
        mine = asyncio.to_thread(burst, crowded, 300)
        others = asyncio.to_thread(burst, crowded, 2000, 0.02)
        return (await asyncio.gather(mine, others))[0]

    assert asyncio.run(both()) == {"OK": 300}


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_calls_without_a_message_lock_nobody_out(crowded, method):
    connections = [http2.connected(crowded.grpc_port) for _ in range(12)]
    for connection in connections:
        # The server allows one connection so many calls.
        http2.begin(connection, f"{SERVICE}/{method}", range(1, 201, 2))
    assert burst(crowded, 100) == {"OK": 100}
    with grpc.insecure_channel(f"127.0.0.1:{crowded.grpc_port}") as channel:
        assert channel.unary_unary(CHECK)(b"", timeout=30) == SERVING
    for connection in connections:
        connection.close()


def test_clients_that_leave_before_their_answer_leave_no_traceback(crowded):
    for _ in range(20):
        with http2.connected(crowded.grpc_port) as connection:
            message = simple()
            data = http2.begun_message(len(message), 0) + message
            for stream in range(1, 101, 2):
                http2.begin(connection, f"{SERVICE}/ModelInfer", [stream])
                connection.sendall(http2.frame(http2.DATA, 1, stream, data))
            connection.recv(1)
    assert burst(crowded, 1) == {"OK": 1}
    assert "Traceback" not in crowded.log.read_text()


@pytest.mark.parametrize("resets", [True, False])
def test_clients_that_leave_amid_a_large_answer_leave_no_traceback(crowded, resets):
    message = messages.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 1 << 20))
    message.raw_input_contents.append(bytes(4 << 20))
    data = message.SerializeToString()
    before = crowded.log.read_text()
    with http2.connected(crowded.grpc_port) as connection:
        sender = http2.Sender(connection, f"{SERVICE}/ModelInfer")
        sender.send(http2.begun_message(len(data), 0) + data)
        connection.sendall(http2.frame(http2.DATA, http2.END_STREAM, 1))
        # The client gives no room for more of the answer than its beginning.
        while not sender.answered:
            sender.receive()
        if resets:
            connection.sendall(http2.frame(http2.RST_STREAM, 0, 1, http2.CANCEL))
    assert burst(crowded, 1) == {"OK": 1}
    until(lambda: crowded.log.read_text().removeprefix(before).count("/ModelInfer") >= 2)
    assert "ExecuteBatchError" not in crowded.log.read_text()


def half_a_message(server: RunningServer, method: str, declared: int, sent: int) -> bytes:
    """Return the responses to a client that sends the beginning of a message."""
    with http2.connected(server.grpc_port) as connection:
        sender = http2.Sender(connection, f"{SERVICE}/{method}")
        with suppress(OSError, http2.Closed):
            sender.send(http2.begun_message(declared, sent))
            while not sender.ended:
                sender.receive()
        return sender.answered


def attack(server: RunningServer, clients: int, method: str) -> list[bytes]:
    """Return the responses to clients that each send 24 of 32 MiB."""
    with ThreadPoolExecutor(clients) as pool:
        begun = partial(half_a_message, server, method, 32 * MIB)
        return list(pool.map(begun, [24 * MIB] * clients))


def infer(server: RunningServer, elements: int, model: str = "identity_fp32") -> str:
    message = messages.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, elements))
    message.raw_input_contents.append(bytes(4 * elements))
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options) as channel:
        call = channel.unary_unary(f"{SERVICE}/ModelInfer")
        try:
            call(message.SerializeToString(), timeout=120)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code.name
    return "OK"


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_messages_that_stop_arriving_count_end_and_leave(start, method):
    server = start("--max-inflight-mb=96", "--body-timeout-s=3")
    before = server.memory_mb()
    answers = attack(server, 24, method)
    ended = Counter((LATE in answer) - (FULL in answer) for answer in answers)
    # Each has its reason: there was room for four.
    assert ended.total() == 24
    assert ended[0] == 0
    assert ended[1] <= 4
    assert ended[-1] >= 20
    # They sent 576 MiB. What comes before somebody looks is not counted.
    assert server.memory_mb("VmHWM") < before + 350
    assert held(server) == 0
    until(lambda: server.memory_mb() < before + 120)
    assert infer(server, 1000) == "OK"


def test_a_declared_size_that_http_would_not_take_is_refused_at_once(start):
    server = start("--http-max-input-size=1000000")
    answer = half_a_message(server, "ModelInfer", 500 * MIB, 1000)
    assert b"larger than max (524288000 vs. 1000000)" in answer


def test_whole_messages_are_held_by_the_budget_and_their_memory_comes_back(start):
    server = start("--max-inflight-mb=128")
    before = server.memory_mb()
    with ThreadPoolExecutor(12) as pool:
        codes = list(pool.map(lambda _: infer(server, 10 * MIB), range(12)))
    assert set(codes) <= {"OK", "UNAVAILABLE"}
    assert "OK" in codes
    assert server.memory_mb("VmHWM") < before + 900
    until(lambda: held(server) == 0)


def test_what_is_refused_leaves_no_memory(start):
    server = start("--max-inflight-mb=512")
    # glibc keeps 32 MiB of free memory at the end of each heap, which are as many as the threads of
    # gRPC made: three where nobody else works, and eight at most.
    most = server.memory_mb() + 8 * 32
    assert {infer(server, 10 * MIB, "absent") for _ in range(10)} == {"NOT_FOUND"}
    until(lambda: server.memory_mb() < most)
    for _ in range(6):
        url = f"{server.url}/v1/models/simple/predict"
        assert httpx.post(url, content=bytes(60 * MIB)).status_code >= 400
    until(lambda: server.memory_mb() < most)


def test_an_idle_stream_outlives_the_time_of_messages(start):
    server = start("--body-timeout-s=1")
    end = threading.Event()

    def requests() -> Iterator[bytes]:
        yield messages.ModelInferRequest(model_name="simple").SerializeToString()
        end.wait(3)
        yield messages.ModelInferRequest(model_name="simple").SerializeToString()

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
        assert len(list(stream(requests(), timeout=30))) == 2


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_half_of_a_message_does_not_keep_a_server_that_is_to_stop(start, method):
    server = start("--exit-timeout-secs=1", "--body-timeout-s=600")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(half_a_message, server, method, 32 * MIB, 4 * MIB)
        until(lambda: held(server) >= 15 * MIB)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 60
    assert "the process ends now" not in server.log.read_text()


def test_calls_that_wait_are_counted_and_the_budget_bounds_them(start):
    server = start("--max-inflight-mb=10")

    def accounted(begun: int, refused_at_least: int) -> bool:
        # 32 KiB for each that waits, and their headers.
        refused = server.log.read_text().count("status=UNAVAILABLE")
        kept = held(server) - (begun - refused) * 32_768
        return refused >= refused_at_least and 0 <= kept < 100_000

    with ExitStack() as stack:
        # There is room for 319. How many of the last 100 come before the server looks is open.
        for begun, refused_at_least in ((100, 0), (200, 0), (300, 0), (400, 81)):
            connection = stack.enter_context(http2.connected(server.grpc_port))
            http2.begin(connection, f"{SERVICE}/ModelStreamInfer", range(1, 200, 2))
            until(partial(accounted, begun, refused_at_least))
        assert infer(server, 10) == "OK"
    until(lambda: held(server) == 0)


def test_a_connection_that_sent_whole_messages_is_counted_as_a_new_one(start):
    server = start("--max-inflight-mb=16", "--body-timeout-s=2")
    message = messages.ModelInferRequest(model_name="simple").SerializeToString()
    whole = http2.begun_message(len(message), 0) + message
    half = http2.begun_message(15 * MIB, 6 * MIB)
    with http2.connected(server.grpc_port) as connection:
        sender = http2.Sender(connection, f"{SERVICE}/ModelStreamInfer")
        for _ in range(20):
            sender.send(whole)
        sender.send(half)
        until(lambda: abs(held(server) - 6 * MIB) < 100_000)
        while LATE not in sender.answered:
            sender.receive()
    until(lambda: held(server) == 0)
