"""What an operator reads: a line for each request over v1, v2 and gRPC, with its id; a warning
while requests are refused; and no lines but Fovea's own.
"""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import grpc
import httpx
import onnx
import onnx.parser
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.certificates import make_pair
from tests.keyed import until
from tests.serving import PROGRAM, RunningServer, start_server

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"
METHOD = "/inference.GRPCInferenceService/"


def logged(server) -> list[dict]:
    """The lines of the access log; every line of the log must be JSON."""
    whole = server.log.read_text().rpartition("\n")[0]
    records = [json.loads(line) for line in whole.splitlines()]
    return [record for record in records if record["logger"] == "fovea_server.access"]


@pytest.fixture(scope="module")
def chatty_server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server that logs JSON, also at DEBUG."""
    flags = ("--log-verbose=1", "--log-format=json")
    server = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    # The line of the request that found it ready.
    until(lambda: any(record["status"] == 200 for record in logged(server)))
    yield server
    assert server.stop() == 0


@pytest.fixture
def records(chatty_server) -> Callable[[int], list[dict]]:
    """Wait for as many lines of the access log as the test makes."""
    before = len(logged(chatty_server))

    def read(count: int) -> list[dict]:
        until(lambda: len(logged(chatty_server)) - before >= count)
        found = logged(chatty_server)[before:]
        assert len(found) == count
        return found

    return read


def call(channel: grpc.Channel, method: str, data: bytes, request_id: str | None = None):
    """Status and id of a unary call."""
    metadata = None if request_id is None else [("x-request-id", request_id)]
    made = channel.unary_unary(method)
    try:
        _, done = made.with_call(data, metadata=metadata, timeout=30)
    except grpc.RpcError as error:
        done = error
    return done.code().name, dict(done.trailing_metadata())["x-request-id"]


def test_http_and_grpc_have_one_line_a_request(chatty_server, records, scene):
    server = chatty_server
    answers = [
        httpx.get(f"{server.url}/v2/models/digits", headers={"X-Request-Id": "one"}),
        httpx.post(f"{server.predict_url('digits')}?conf=0.5", content=scene),
        httpx.post(f"{server.url}/v2/models/digits/infer", content=b"{"),
        httpx.get(f"{server.url}/docs"),
        httpx.get(f"{server.url}/v1/nothing"),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        assert call(channel, f"{METHOD}ModelMetadata", b"\n\6digits", "two") == ("OK", "two")
        assert call(channel, f"{METHOD}ModelInfer", b"\n\6nobody")[0] == "NOT_FOUND"
        assert call(channel, f"{METHOD}Nothing", b"", "three") == ("UNIMPLEMENTED", "three")
        stream = channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([b"\n\6nobody"]))
        streamed = sum(map(len, stream))
        stream_id = dict(stream.trailing_metadata())["x-request-id"]
        strict = [("triton_grpc_error", "true")]
        with pytest.raises(grpc.RpcError):
            list(channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([b""]), metadata=strict))
    told = records(len(answers) + 5)
    http, rpc = told[: len(answers)], told[len(answers) :]
    for record, answer in zip(http, answers, strict=True):
        assert record["client"] == "127.0.0.1"
        assert record["level"] == "INFO"
        assert record["method"] == answer.request.method
        assert record["path"] == answer.request.url.raw_path.decode()
        assert record["status"] == answer.status_code
        assert record["id"] == answer.headers["x-request-id"]
        assert record["bytes"] == int(answer.headers["content-length"])
        assert record["ms"] > 0
    assert http[0]["id"] == "one"
    assert [record["model"] for record in http] == ["digits"] * 3 + [None] * 2
    named = ("method", "model", "status", "id")
    assert [
        tuple(record[name] for name in named)
        for record in rpc
        if record["id"] in ("two", "three", stream_id)
    ] == [
        ("ModelMetadata", "digits", "OK", "two"),
        ("Nothing", None, "UNIMPLEMENTED", "three"),
        ("ModelStreamInfer", "nobody", "OK", stream_id),
    ]
    assert [(record["method"], record["status"]) for record in rpc] == [
        ("ModelMetadata", "OK"),
        ("ModelInfer", "NOT_FOUND"),
        ("Nothing", "UNIMPLEMENTED"),
        ("ModelStreamInfer", "OK"),
        ("ModelStreamInfer", "NOT_FOUND"),
    ]
    assert rpc[3]["bytes"] == streamed
    assert rpc[0]["path"] == f"{METHOD}ModelMetadata"


def test_probes_and_scrapes_are_logged_at_debug(chatty_server, records):
    statistics = "/v1/models/digits/statistics"
    paths = {"/v1/health/live": "DEBUG", "/v1/healthfoo": "INFO", "/metricsfoo": "INFO"}
    paths |= {statistics: "DEBUG", f"{statistics}foo": "INFO", "/v1/models": "DEBUG"}
    paths |= {"/v1/models/nobody/statistics": "INFO", "/statistics": "INFO"}
    paths |= {"/v2/models/digits/ready": "DEBUG"}
    for path in paths:
        httpx.get(chatty_server.url + path)
    chatty_server.metrics()
    with grpc.insecure_channel(f"127.0.0.1:{chatty_server.grpc_port}") as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    paths |= dict.fromkeys(("/metrics", "/grpc.health.v1.Health/Check"), "DEBUG")
    assert {record["path"]: record["level"] for record in records(len(paths))} == paths


def test_long_names_are_cut(chatty_server, records):
    server = chatty_server
    for path in ("/v1/", "/v2/models/"):
        httpx.get(server.url + path + "p" * 60_000)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        size = b"\x80\x80\x40"  # 1 MiB, as protobuf writes it
        assert call(channel, f"{METHOD}ModelInfer", b"\n" + size + b"m" * 2**20)[0] == "NOT_FOUND"
    *http, rpc = records(3)
    assert [record["path"][-4:] for record in http] == ["p..."] * 2
    assert rpc["model"] == "m" * 1024 + "..."
    assert max(map(len, server.log.read_text().splitlines())) < 5000


def test_the_text_has_the_same_and_can_be_switched_off(demo_repository, serve):
    server = serve(demo_repository)
    httpx.get(f"{server.url}/v2/models/digits?x=%0Ay", headers={"X-Request-Id": "abc"})
    # Probes and scrapes are not logged at this level.
    httpx.get(f"{server.url}/v2/health/live")
    server.metrics()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        channel.unary_unary(f"{METHOD}ServerLive")(b"")
    assert server.stop() == 0
    (line,) = [line for line in server.log.read_text().splitlines() if ".access" in line]
    wanted = r"127\.0\.0\.1 GET '/v2/models/digits\?x=%0Ay' model='digits' status=200 bytes=\d+ "
    assert re.search(rf"INFO    fovea_server\.access: {wanted}ms=[\d.]+ id=abc$", line)
    server = serve(demo_repository, "--log-access=false")
    assert httpx.get(f"{server.url}/v2").headers["x-request-id"]
    assert server.stop() == 0
    assert ".access" not in server.log.read_text()


def test_of_several_ids_of_an_rpc_the_last_counts(demo_server):
    twice = [("x-request-id", "first"), ("x-request-id", "last")]
    with grpc.insecure_channel(f"127.0.0.1:{demo_server.grpc_port}") as channel:
        _, done = channel.unary_unary(f"{METHOD}ServerLive").with_call(b"", metadata=twice)
    assert dict(done.trailing_metadata())["x-request-id"] == "last"


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "identity"}])
def test_durations_have_the_model_and_the_status(demo_repository, serve, scene, headers):
    """By both ways through the server."""
    server = serve(demo_repository)
    httpx.post(server.predict_url("digits"), content=scene, headers=headers)
    httpx.post(f"{server.predict_url('digits')}?conf=5", content=scene, headers=headers)
    gone = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    gone += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(gone.encode() + b"\r\nx")
    until(lambda: 'status="499"' in server.metrics())
    for name in ("digits", "x", "y", "z"):
        httpx.post(server.predict_url(name), content=b"no image", headers=headers)
        httpx.post(f"{server.url}/v2/models/{name}/infer", content=b"{")
    httpx.get(f"{server.url}/v2/models/digits")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for name in (b"\n\6digits", b"\n\6nobody"):
            call(channel, f"{METHOD}ModelInfer", name)
            list(channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([name, name])))
    text = server.metrics()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    family = families["fovea_request_duration_seconds"]
    assert family.type == "histogram"
    counts = {
        (sample.labels["model"], sample.labels["status"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_count")
    }
    assert counts == {
        # No tensor was right: it begins with 0.
        ("digits", "OK"): 0,
        ("digits", "200"): 1,
        # One is malformed JSON, for which /v2 returns 500.
        ("digits", "400"): 2,
        ("digits", "422"): 1,
        ("digits", "499"): 1,
        ("", "404"): 6,
        ("digits", "INVALID_ARGUMENT"): 3,
        ("", "NOT_FOUND"): 3,
    }
    sums = [sample.value for sample in family.samples if sample.name.endswith("_sum")]
    assert sum(value > 0 for value in sums) == len(counts) - 1
    assert server.stop() == 0
    told = [line for line in server.log.read_text().splitlines() if f"POST '{PREDICT}" in line]
    assert ["status=499" in line for line in told].count(True) == 1
    assert ["conf=5' model='digits' status=422" in line for line in told].count(True) == 1


LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ (DEBUG|INFO|WARNING|ERROR) +fovea_[\w.]+: .")


TWELVE = """<ir_version: 8, opset_import: ["": 17]>
twelve (float[n] vector) => (float[rows, columns] matrix) <int64[2] shape = {3, 4}> {
    matrix = Reshape (vector, shape)
}"""


def test_no_library_speaks_for_itself(tmp_path, serve):
    # It fails on all vectors but those of twelve values.
    folder = tmp_path / "repository" / "twelve"
    (folder / "1").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(TWELVE), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text("max_batch_size: 0")
    key, certificate = make_pair(tmp_path, "server")
    server = serve(
        folder.parent,
        "--grpc-use-ssl=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
        program=PROGRAM,
    )
    tensor = {"name": "vector", "shape": [5], "datatype": "FP32", "data": [0] * 5}
    url = f"{server.url}/v2/models/twelve/infer"
    assert httpx.post(url, json={"inputs": [tensor]}).status_code == 500
    for port in (server.port, server.grpc_port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"neither TLS nor HTTP\r\n\r\n")
            while connection.recv(1000):
                pass
    assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    assert lines
    assert [line for line in lines if not LINE.match(line)] == []
    told = "\n".join(lines)
    assert f": Fovea {version('fovea-serve')}\n" in told
    assert f": metrics on 127.0.0.1 port {server.metrics_port}: /metrics\n" in told
    assert "no keys are required: only programs on this machine" in told
    [listening] = [line for line in lines if f"HTTP on 127.0.0.1 port {server.port}" in line]
    assert listening.endswith(f"; open {server.url}/ in a browser to try the models")


def test_refused_requests_say_when_to_come_back_and_are_warned_of(demo_repository, serve, scene):
    page = "https://app.example.com"
    flags = ("--max-inflight-mb=0.1", "--max-queue=1", f"--cors-origin={page}")
    server = serve(demo_repository, *flags)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(scene)}\r\n\r\n"
    tensors = f"{server.url}/v2/models/digits/infer"

    def ask(url: str, **body: object) -> httpx.Response:
        answer = httpx.post(url, headers={"Origin": page}, **body)  # type: ignore[arg-type]
        assert answer.headers["access-control-allow-origin"] == page
        return answer

    url = server.predict_url("digits")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        # It is held until the rest arrives, which it never does.
        connection.sendall(head.encode() + scene[:-1])
        until(lambda: ask(url, content=scene).status_code == 429)
        refused = [ask(url, content=scene) for _ in range(4)] + [ask(url, files={"f": scene})]
        assert [answer.status_code for answer in refused] == [429] * 5
        assert min(int(answer.headers["retry-after"]) for answer in refused) >= 1
        assert [ask(tensors, content=scene).status_code for _ in range(2)] == [503] * 2
    assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    warned = [line for line in lines if "fovea_server.refused" in line]
    assert len(warned) == 2
    assert "1 request refused in the last minute: 1 queue_full of model 'digits'" in warned[0]
    assert "7 requests refused in the last minute: 7 queue_full of model 'digits'" in warned[1]
    assert "--max-inflight-mb" in warned[1]


def test_the_log_and_the_name_are_as_the_flags_say(serve, demo_repository, tmp_path):
    file = tmp_path / "server.log"
    flags = ("--log-info=false", "--log-format=ISO8601", f"--log-file={file}", "--id=camera")
    server = serve(demo_repository, *flags)
    settings = httpx.get(f"{server.url}/v2/logging").json()
    assert (settings["log_file"], settings["log_info"]) == (str(file), False)
    assert (settings["log_format"], settings["log_verbose_level"]) == ("ISO8601", 0)
    assert httpx.get(f"{server.url}/v2").json()["name"] == "camera"
    assert server.stop() == 0
    assert "INFO" not in file.read_text()


def test_a_log_that_nobody_reads_holds_up_neither_requests_nor_the_end(tmp_path):
    ours, its = os.pipe()
    fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
    # A model that is not ready: the event loop itself warns of requests for it.
    file = tmp_path / "repository" / "broken" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no model")
    repository = tmp_path / "repository"
    server = start_server(repository, tmp_path, ["--exit-timeout-secs=3"], wait=False, stderr=its)
    os.close(its)
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for _ in range(100):
                assert client.get(f"/v2/models/{'n' * 200}").status_code == 404
            assert client.post("/v1/models/broken/predict", content=b"x").status_code == 503
            assert client.get("/v2/health/live").status_code == 200
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()
        os.close(ours)


def test_a_full_disk_is_told_once(demo_repository, serve):
    server = serve(demo_repository, "--log-file=/dev/full")
    for _ in range(3):
        httpx.get(f"{server.url}/v2/models/nobody")
        time.sleep(0.1)
    assert server.stop() == 0
    (told,) = server.log.read_text().splitlines()
    assert told.startswith("the log cannot be written to /dev/full: No space left on device; ")


def test_a_start_that_fails_shows_what_was_logged_before_its_error(tmp_path):
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", tmp_path / "nowhere"]
    environment = os.environ | {"FOVEA_NONSENSE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    named, warned, error = done.stderr.splitlines()
    assert f"Fovea {version('fovea-serve')}" in named
    assert "FOVEA_NONSENSE" in warned
    assert error.startswith("error: ")
