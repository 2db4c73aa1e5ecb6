"""The end of a server with --drain-secs, as probes, load balancers and clients see it."""

import math
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from tests import load
from tests.images.load import Load
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

pytestmark = pytest.mark.slow

LIVE, READY = "/v2/health/live", "/v2/health/ready"
CHECK = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = bytes([8, 1]), bytes([8, 2])


def until_not_ready(client: httpx.Client) -> httpx.Response:
    """The first answer that says so."""
    until = time.monotonic() + 60
    while (answer := client.get(READY, headers={"Connection": "close"})).status_code == 200:
        assert time.monotonic() < until
    return answer


def until_nobody_listens(port: int) -> None:
    """Until connections are refused."""
    until = time.monotonic() + 60
    with suppress(ConnectionRefusedError):
        while time.monotonic() < until:
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
            time.sleep(0.05)
        pytest.fail("the port is still open")


def until_it_answers_no_more(address: str) -> None:
    """Until a client that does not read has made the server wait."""
    before, count = -1, 0
    while count != before:
        time.sleep(0.5)
        [model] = httpx.get(address).json()["model_stats"]
        before, count = count, model["inference_count"]


def test_it_is_not_ready_and_live_and_answers_until_it_stops(demo_repository, serve, scene):
    server = serve(demo_repository, "--drain-secs=3600")
    with (
        httpx.Client(base_url=server.url, timeout=30) as client,
        httpx.Client(base_url=server.url) as probe,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        check = channel.unary_unary(CHECK)
        assert client.post("/v1/models/digits/predict", content=scene).status_code == 200
        assert check(b"") == SERVING
        server.process.send_signal(signal.SIGTERM)
        refused = until_not_ready(probe)
        assert (refused.status_code, refused.json()["reason"]) == (400, "the server is stopping")
        assert probe.get("/v1/health/ready").status_code == 503
        assert check(b"") == NOT_SERVING
        metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
        assert "\nfovea_ready 0" in metrics

        # On the connection from before, and then on one that is new: each is asked to leave.
        for _ in range(2):
            answered = client.post("/v1/models/digits/predict", content=scene)
            assert (answered.status_code, answered.headers["connection"]) == (200, "close")
        for path in (LIVE, "/v1/health/live", "/v2/models/digits/ready", "/v1/models"):
            answered = client.get(path)
            assert (answered.status_code, answered.headers["connection"]) == (200, "close")
    # A second Ctrl-C ends it, which without the drain would take an hour.
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("path", ["/v2/health/live", "/v1/models"])
def test_pipelined_requests_are_all_answered(demo_repository, serve, path):
    """Only the last of those that have arrived says that the connection closes."""
    server = serve(demo_repository, "--drain-secs=3600")
    with httpx.Client(base_url=server.url) as probe:
        server.process.send_signal(signal.SIGTERM)
        until_not_ready(probe)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 5)
        got = b""
        while piece := connection.recv(65536):
            got += piece
    assert got.count(b"HTTP/1.1 200 OK") == 5
    assert got.count(b"connection: close") == 1


def test_clients_that_know_of_no_other_server_are_answered_until_nobody_listens(
    demo_repository, serve, scene
):
    server = serve(demo_repository, "--drain-secs=1")
    with Load(server.port, "digits", scene, clients=16) as load:
        load.wait_for(32)
        assert server.stop() == 0
    assert load.counts["lost"] == 0


def test_a_second_ctrl_c_does_not_wait_for_a_client_that_reads_nothing(demo_repository, serve):
    server = serve(demo_repository, "--exit-timeout-secs=3600")
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        [image] = client.get_model_metadata("digits").inputs
    request = messages.ModelInferRequest(model_name="digits")
    request.inputs.add(name=image.name, datatype="FP32", shape=[1, *image.shape[1:]])
    request.raw_input_contents.append(bytes(4 * math.prod(image.shape[1:])))
    end = threading.Event()

    def requests():
        for _ in range(1000):
            yield request
        end.wait(60)

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stream = service.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests())
        assert not next(stream).error_message
        until_it_answers_no_more(f"{server.url}/v2/models/digits/stats")
        server.process.send_signal(signal.SIGINT)
        until_nobody_listens(server.port)
        # It would wait for an hour.
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        end.set()
    assert "Traceback" not in server.log.read_text()


def test_clients_of_grpc_that_wait_for_answers_get_them(demo_repository, serve):
    """After its last answer each is told that nobody listens, which it may send again safely."""
    server = serve(demo_repository)
    with load.Load(load.over_grpc(f"127.0.0.1:{server.grpc_port}")) as clients:
        clients.wait_for_more(32)
        assert server.stop() == 0
    assert clients.failed
    assert not [told for told in clients.failed if "StatusCode.UNAVAILABLE" not in told]


@pytest.mark.parametrize("flag", ["--drain-secs=-1", "--drain-secs=soon", "--drain-secs=inf"])
def test_a_time_that_is_none_is_refused(fovea, demo_repository, flag):
    code, _, told = fovea("serve", demo_repository, flag)
    assert code == 2
    assert "--drain-secs" in told
