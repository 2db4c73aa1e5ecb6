"""Messages that stop arriving, and many large ones: the server's memory is bounded, and comes back.

The attacker speaks HTTP/2 by hand, since no client of gRPC sends half a message.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from tests import http2
from tests.serving import RunningServer, start_server
from tritonclient.grpc import service_pb2 as messages

pytestmark = pytest.mark.real

SERVICE = "/inference.GRPCInferenceService"
MIB = 1 << 20
LATE, FULL = b"did not arrive within", b"held already"


@pytest.fixture
def start(shared, tmp_path) -> Iterator[Callable[..., RunningServer]]:
    models = shared / "data" / "triton" / "models"
    if not models.is_dir():
        pytest.skip(f"models are absent: {models} is not there")
    repository = tmp_path / "models"
    repository.mkdir()
    for name in ("simple", "identity_fp32"):
        (repository / name).symlink_to(models / name)
    started: list[RunningServer] = []

    def run(*flags: str) -> RunningServer:
        started.append(start_server(repository, tmp_path, flags))
        return started[-1]

    yield run
    for server in started:
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def status(server: RunningServer, field: str) -> int:
    """`VmRSS` or `VmHWM` of the server, in MiB."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) // 1024


def held(server: RunningServer) -> int:
    text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    return int(float(text.split("\nfovea_held_bytes ")[1].split()[0]))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def half_a_message(
    server: RunningServer, method: str, declared: int, sent: int, answers: list[bytes]
) -> None:
    with http2.connected(server.grpc_port) as connection, suppress(OSError, http2.Closed):
        sender = http2.Sender(connection, f"{SERVICE}/{method}")
        sender.send(http2.begun_message(declared, sent))
        while not sender.ended:
            sender.receive()
        answers.append(sender.answered)


def attack(server: RunningServer, clients: int, method: str) -> list[bytes]:
    """What so many clients get that each send 24 of 32 MiB."""
    answers: list[bytes] = []
    given = (server, method, 32 * MIB, 24 * MIB, answers)
    threads = [threading.Thread(target=half_a_message, args=given) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def infer(server: RunningServer, elements: int, model: str = "identity_fp32") -> str:
    message = messages.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, elements))
    message.raw_input_contents.append(bytes(4 * elements))
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options) as channel:
        call = channel.unary_unary(f"{SERVICE}/ModelInfer")
        try:
            call(message.SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code.name
    return "OK"


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_messages_that_stop_arriving_count_end_and_leave(start, method):
    server = start("--max-held-mb=96", "--body-timeout-s=3")
    before = status(server, "VmRSS")
    answers = attack(server, 24, method)
    ended = Counter((LATE in answer) - (FULL in answer) for answer in answers)
    # Each has its reason: there was room for four.
    assert ended.total() == 24
    assert ended[0] == 0
    assert ended[1] <= 4
    assert ended[-1] >= 20
    # They sent 576 MiB. What comes before somebody looks is not counted.
    assert status(server, "VmHWM") < before + 350
    assert held(server) == 0
    until(lambda: status(server, "VmRSS") < before + 120)
    assert infer(server, 1000) == "OK"


def test_a_declared_size_that_http_would_not_take_is_refused_at_once(start):
    server = start("--http-max-input-size=1000000")
    answers: list[bytes] = []
    half_a_message(server, "ModelInfer", 500 * MIB, 1000, answers)
    assert b"larger than max (524288000 vs. 1000000)" in answers[0]


def test_whole_messages_are_held_by_the_budget_and_their_memory_comes_back(start):
    server = start("--max-held-mb=128")
    before = status(server, "VmRSS")
    codes: list[str] = []
    threads = [
        threading.Thread(target=lambda: codes.append(infer(server, 10 * MIB))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) <= {"OK", "UNAVAILABLE"}
    assert "OK" in codes
    assert status(server, "VmHWM") < before + 900
    until(lambda: held(server) == 0)


def test_messages_that_are_refused_leave_no_memory(start):
    server = start()
    before = status(server, "VmRSS")
    assert {infer(server, 10 * MIB, "absent") for _ in range(10)} == {"NOT_FOUND"}
    until(lambda: status(server, "VmRSS") < before + 100)


def test_bodies_of_http_leave_no_memory_either(start):
    server = start("--max-held-mb=512")
    before = status(server, "VmRSS")
    with ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(httpx.Client(base_url=server.url))
            answer = client.post("/v1/models/simple/predict", content=bytes(60 * MIB))
            assert answer.status_code >= 400
    until(lambda: status(server, "VmRSS") < before + 100)


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
    answers: list[bytes] = []
    given = (server, method, 32 * MIB, 4 * MIB, answers)
    threads = [threading.Thread(target=half_a_message, args=given) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: held(server) >= 15 * MIB)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 60
    for thread in threads:
        thread.join()
    assert "the server ends now" not in server.log.read_text()


def test_calls_that_wait_are_counted_and_the_budget_bounds_them(start):
    server = start("--max-held-mb=10")

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
    server = start("--max-held-mb=16", "--body-timeout-s=2")
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
