"""A server over its life: its start, full queues, clients that leave, probes, drain and end."""

import contextlib
import http.client
import io
import json
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import onnx
import onnx.parser
import pytest
import tritonclient.grpc as triton
from PIL import Image
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.forked import forked_fovea
from tests.images import load as images
from tests.keyed import until
from tests.load import Load, over_grpc, over_http
from tests.server.registries import adder
from tests.serving import free_ports
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
READY = "/v2/health/ready"


def test_what_cannot_be_served_ends_at_once_with_a_sentence(demo_server, demo_repository, tmp_path):
    def serve(*arguments: object, code: int = 2) -> str:
        command = [*forked_fovea(), "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "is not a folder" in serve(tmp_path / "nowhere")
    free = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    ports = (demo_server.port, demo_server.grpc_port, demo_server.metrics_port)
    for flag, port in zip(free, ports, strict=True):
        taken = serve(demo_repository, *free, flag.replace("0", str(port)), code=1)
        assert f"port {port}" in taken
        assert flag.removesuffix("=0") in taken
        assert "loading" not in taken
    # Before it is told, nothing was begun that would have to be given up.
    for wrong in (
        *("--trace-config=level=TIMESTAMPS", "--http-server-key=key", "--grpc-use-ssl"),
        *("--drain-secs=-1", "--drain-secs=soon", "--drain-secs=inf"),
    ):
        error = serve(demo_repository, *free, wrong).splitlines()[-1]
        assert error.startswith("error: ")
    broken = tmp_path / "repository" / "broken" / "1" / "model.onnx"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no model")
    error = serve(tmp_path / "repository", "--exit-on-error=true", *free, code=1).splitlines()[-1]
    assert "broken" in error
    assert "--exit-on-error" in error


def test_without_uvloop_it_serves_just_as_well(
    serve, demo_repository, scene, tmp_path, monkeypatch
):
    (tmp_path / "uvloop.py").write_text("raise ImportError('it is not for this system')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = serve(demo_repository, "--allow-grpc=false", "--allow-metrics=false")
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    for port in (server.grpc_port, server.metrics_port):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert server.stop() == 0


def test_a_full_queue_says_when_to_come_back(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "4")
    url = server.predict_url("digits")
    assert httpx.post(url, files=[("f", scene)] * 5).status_code == 400, "it would never fit"
    refused, wrong = threading.Event(), []

    def insist() -> None:
        for _ in range(40):
            response = httpx.post(url, files=[("f", scene)] * 3, timeout=30)
            if response.status_code == 429:
                assert response.json()["error"]["code"] == "queue_full"
                assert int(response.headers["retry-after"]) >= 1
                refused.set()
            elif response.status_code != 200:
                wrong.append(response.text)
            if refused.is_set():
                return

    threads = [threading.Thread(target=insist) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert not wrong
    assert httpx.post(url, files=[("f", scene)] * 4).status_code == 200, "all places are free again"


def test_a_client_that_goes_away_frees_its_place(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-queue", "32")
    url = server.predict_url("digits")
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, files=[("f", scene)] * 32, timeout=httpx.Timeout(5, read=0.01))
        until(lambda: httpx.post(url, files=[("f", scene)] * 30).status_code == 200)


[MANIFEST] = YAML(typ="safe").load_all(ROOT / "docker" / "kubernetes" / "base" / "deployment.yaml")
[CONTAINER] = MANIFEST["spec"]["template"]["spec"]["containers"]
TIMEOUT_S = CONTAINER["readinessProbe"]["timeoutSeconds"]
PROBES = ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready")
HEADERS = (
    {"User-Agent": "kube-probe/1.34", "Connection": "close"},
    {"User-Agent": "kube-probe/1.34", "K-Network-Probe": "queue"},
)


def probe(url: str) -> None:
    """Each on a connection of its own; another status or a late answer fails."""
    for path in PROBES:
        for headers in HEADERS:
            answer = httpx.get(url + path, headers=headers, timeout=TIMEOUT_S)
            assert answer.status_code == 200, (path, answer.text)


def test_they_are_answered_while_all_cores_are_busy(demo_server):
    with Load(over_http(demo_server.url)) as load:
        load.wait_for_more()
        for _ in range(25):
            probe(demo_server.url)
            load.wait_for_more(1)
    assert not load.failed, load.failed


def test_readiness_stays_while_a_model_is_replaced(demo_versions, tmp_path, serve):
    repository = tmp_path / "repository"
    shutil.copytree(demo_versions, repository)
    second = (repository / "digits" / "2").rename(tmp_path / "second")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.1", "--log-access=false")
    server = serve(repository, *flags)
    with Load(over_http(server.url)) as load:
        for _ in range(2):
            before = load.answered["2"]
            shutil.copytree(second, repository / "digits" / ".new")
            (repository / "digits" / ".new").rename(repository / "digits" / "2")
            while load.answered["2"] == before:
                probe(server.url)
                load.wait_for_more(1)
            before = load.answered["1"]
            shutil.rmtree(repository / "digits" / "2")
            while load.answered["1"] == before:
                probe(server.url)
                load.wait_for_more(1)
    assert not load.failed, load.failed


@contextlib.contextmanager
def taken_on(server, body) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection whose request the server has begun to read, and the body that is still to go."""
    request = httpx.Request("POST", server.predict_url("digits"), **body)
    body = request.read()
    head = f"POST {request.url.raw_path.decode()} HTTP/1.1\r\nExpect: 100-continue\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        yield connection, body


def answer_on(connection) -> tuple[int, dict]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_sigterm_finishes_what_was_accepted(demo_repository, serve, scene):
    server = serve(demo_repository)
    with taken_on(server, {"files": [("f", scene)] * 40}) as (connection, body):
        connection.sendall(body[: len(body) // 2])
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.sendall(body[len(body) // 2 :])
        status, answer = answer_on(connection)
        assert status == 200
        assert len(answer["images"]) == 40
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_many_signals_to_stop_do_not_make_a_failed_stop(demo_repository, serve):
    server = serve(demo_repository)
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def large() -> bytes:
    """An image that takes the better part of a second to decode."""
    file = io.BytesIO()
    Image.new("RGB", (8000, 7500)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("sent", "form"), [("half", True), ("half", False), ("all", True)])
def test_what_outlasts_the_time_to_exit_is_told_so(
    demo_repository, serve, scene, large, sent, form
):
    # A small image is answered meanwhile; the large ones take half a minute of two cores.
    server = serve(demo_repository, "--exit-timeout-secs", "6" if sent == "all" else "1")
    request = {"files": {"f": scene}} if form else {"content": scene}
    with (
        taken_on(server, {"files": [("f", large)] * 48}) as (busy, before),
        taken_on(server, request) as (connection, body),
    ):
        busy.sendall(before)
        until(lambda: server.metric("nv_inference_pending_request_count") >= 40)
        connection.sendall(body if sent == "all" else body[: len(body) // 2])
        server.process.send_signal(signal.SIGTERM)
        # A small image that is there does not wait behind large ones.
        outlasting = (connection, busy) if sent == "half" else (busy,)
        if sent == "all":
            assert answer_on(connection)[0] == 200
        for each in outlasting:
            status, answer = answer_on(each)
            assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


LIVE, CHECK = "/v2/health/live", "/grpc.health.v1.Health/Check"
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
    with contextlib.suppress(ConnectionRefusedError):
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
        assert server.metric("fovea_ready") == 0

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
    with images.Load(server.port, "digits", scene, clients=16) as load:
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
    with Load(over_grpc(f"127.0.0.1:{server.grpc_port}")) as clients:
        clients.wait_for_more(32)
        assert server.stop() == 0
    assert clients.failed
    assert not [told for told in clients.failed if "StatusCode.UNAVAILABLE" not in told]


# Its warm-up computes for days in one call, which nothing interrupts.
ENDLESS = """
<ir_version: 9, opset_import: ["": 17]>
endless (int64[N, 1] X) => (int64[N, 1] Y)
<int64 turns = {1152921504606846976}, bool yes = {1}, int64[1, 1] one = {1}> {
    Y = Loop (turns, yes, X) <body = step (int64 turn, bool going, int64[N, 1] before)
        => (bool goes_on, int64[N, 1] after) {
        goes_on = Identity (going)
        after = Add (before, one)
    }>
}
"""


def warm(folder: Path, datatype: str, size: int, count: int = 1) -> None:
    """Give a model a warm-up with zeros."""
    zeros = f"data_type: {datatype} dims: [ {size} ] zero_data: true"
    inputs = f'inputs {{ key: "X" value {{ {zeros} }} }}'
    (folder / "config.pbtxt").write_text(
        f'model_warmup {{ name: "s" batch_size: 1 count: {count} {inputs} }}'
    )


@pytest.mark.parametrize("flags", [(), ("--model-control-mode=explicit",), ("--exit-on-error",)])
def test_a_stop_does_not_wait_for_native_code(tmp_path, flags):
    """The end comes within the time for requests and five seconds, whatever is being loaded."""
    folder = tmp_path / "repository" / "endless"
    (folder / "1").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(ENDLESS), folder / "1" / "model.onnx")
    warm(folder, "TYPE_INT64", 1)
    (port,) = free_ports(1)
    given = [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    given += ["--log-verbose=1", "--exit-timeout-secs=0", *flags]
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", tmp_path / "repository"]
    log = tmp_path / "log"
    with log.open("w") as stream, subprocess.Popen([*command, *given], stderr=stream) as server:
        if "--model-control-mode=explicit" in flags:
            until(lambda: f"port {port};" in log.read_text())
            url = f"http://127.0.0.1:{port}/v2/repository/models/endless/load"
            asking = threading.Thread(target=lambda: httpx.post(url, timeout=60))
            asking.start()
            until(lambda: "warm-up sample s" in log.read_text())
            server.send_signal(signal.SIGTERM)
            asking.join()
        else:
            until(lambda: "warm-up sample s" in log.read_text())
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert "the process ends now" in log.read_text()


def test_a_stop_interrupts_a_warm_up(serve, tmp_path):
    """Ten thousand runs of a model that is quick."""
    folder = adder(tmp_path / "repository", "adder", shape=("N", 4_000_000))
    warm(folder, "TYPE_INT32", 4_000_000, count=10_000)
    server = serve(tmp_path / "repository", "--log-verbose=1", wait=False)
    until(lambda: "warm-up sample s" in server.log.read_text())
    assert server.stop() == 0
    assert "the process ends now" not in server.log.read_text()
    assert server.log.read_text().rstrip().endswith("stopped")
