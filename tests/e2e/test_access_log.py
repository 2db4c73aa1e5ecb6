"""Every request has an id, and a line in the access log; v1, v2 and gRPC alike."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serving import RunningServer, start_server

pytestmark = pytest.mark.slow

METHOD = "/inference.GRPCInferenceService/"
FRESH = re.compile(r"[0-9a-f]{24}")


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
    while not any(record["status"] == 200 for record in logged(server)):
        time.sleep(0.01)  # the line of the request that found it ready
    yield server
    assert server.stop() == 0


@pytest.fixture
def records(chatty_server) -> Callable[[int], list[dict]]:
    """Wait for as many lines of the access log as the test makes."""
    before = len(logged(chatty_server))

    def read(count: int) -> list[dict]:
        until = time.monotonic() + 60
        while len(found := logged(chatty_server)[before:]) < count:
            assert time.monotonic() < until, found
            time.sleep(0.01)
        assert len(found) == count
        return found

    return read


def raw(port: int, data: bytes) -> bytes:
    """The answer to bytes that no client would send."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(4096), b""))


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
    server = chatty_server
    httpx.get(f"{server.url}/v2/models/digits/ready")
    httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    told = records(3)
    assert {record["level"] for record in told} == {"DEBUG"}
    assert [record["path"] for record in told] == [
        "/v2/models/digits/ready",
        "/metrics",
        "/grpc.health.v1.Health/Check",
    ]


def test_only_whole_segments_of_a_path_make_a_probe(chatty_server, records):
    statistics = "/v1/models/digits/statistics"
    paths = {"/v1/health/live": "DEBUG", "/v1/healthfoo": "INFO", "/metricsfoo": "INFO"}
    paths |= {statistics: "DEBUG", f"{statistics}foo": "INFO", "/v1/models": "DEBUG"}
    paths |= {"/v1/models/nobody/statistics": "INFO", "/statistics": "INFO"}
    for path in paths:
        httpx.get(chatty_server.url + path)
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
    httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        channel.unary_unary(f"{METHOD}ServerLive")(b"")
    assert server.stop() == 0
    (line,) = [line for line in server.log.read_text().splitlines() if ".access" in line]
    wanted = r"127\.0\.0\.1 GET '/v2/models/digits\?x=%0Ay' model='digits' status=200 bytes=\d+ "
    assert re.search(rf"INFO    fovea_server\.access: {wanted}ms=[\d.]+ id=abc$", line)
    server = serve(demo_repository, "--log-access=false")
    assert FRESH.fullmatch(httpx.get(f"{server.url}/v2").headers["x-request-id"])
    assert server.stop() == 0
    assert ".access" not in server.log.read_text()


@pytest.mark.parametrize("path", ["/v2/models/nobody", "/v1/nothing", "/docs", "/openapi.json"])
def test_an_id_is_taken_where_it_is_sane(demo_server, path):
    def answered(request_id: bytes) -> str:
        headers = {b"x-request-id": request_id}
        return httpx.get(demo_server.url + path, headers=headers).headers["x-request-id"]

    for sane in (b"a", b"a/b=c;d", b"x" * 128):
        assert answered(sane) == sane.decode()
    for other in (b"", b"x" * 129, b"two words", b"t\tb", b"\xe9", "ü".encode()):
        assert FRESH.fullmatch(answered(other))
    assert answered(b"") != answered(b"")
    twice = [("X-Request-Id", "first"), ("X-Request-Id", "last")]
    assert httpx.get(demo_server.url + path, headers=twice).headers["x-request-id"] == "last"


def test_of_several_ids_of_an_rpc_the_last_counts(demo_server):
    twice = [("x-request-id", "first"), ("x-request-id", "last")]
    with grpc.insecure_channel(f"127.0.0.1:{demo_server.grpc_port}") as channel:
        _, done = channel.unary_unary(f"{METHOD}ServerLive").with_call(b"", metadata=twice)
    assert dict(done.trailing_metadata())["x-request-id"] == "last"


def test_every_refusal_has_an_id(demo_server, serve, demo_repository):
    small = serve(demo_repository, "--http-max-input-size=1000")
    for url, method, content, status in (
        (small.predict_url("digits"), "POST", bytes(1001), 413),
        (f"{small.url}/v2/models/digits/infer", "POST", bytes(1001), 400),
        (small.predict_url("digits"), "POST", b"no image", 400),
        (small.predict_url("nobody"), "POST", b"x", 404),
        (small.predict_url("digits"), "PUT", b"x", 405),
        (f"{small.url}/v2/health/live", "PUT", b"x", 405),
        (f"{small.predict_url('digits')}?conf=x", "POST", b"x", 422),
    ):
        answer = httpx.request(method, url, content=content)
        assert answer.status_code == status
        assert FRESH.fullmatch(answer.headers["x-request-id"])
    broken = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    for request in (
        b"nothing of HTTP\r\n\r\n",
        b"POST /v1/models/digits/predict HTTP/1.1\r\n" + broken,
        b"POST /v2/models/digits/infer HTTP/1.1\r\n" + broken,
    ):
        head = raw(demo_server.port, request).partition(b"\r\n\r\n")[0]
        assert head.startswith(b"HTTP/1.1 400 ")
        assert head.count(b"x-request-id: ") == 1


def test_durations_have_the_model_and_the_status(demo_repository, serve, scene):
    server = serve(demo_repository)
    httpx.post(server.predict_url("digits"), content=scene)
    for name in ("digits", "x", "y", "z"):
        httpx.post(f"{server.url}/v1/models/{name}/predict", content=b"no image")
        httpx.post(f"{server.url}/v2/models/{name}/infer", content=b"{")
    httpx.get(f"{server.url}/v2/models/digits")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for name in (b"\n\6digits", b"\n\6nobody"):
            call(channel, f"{METHOD}ModelInfer", name)
            list(channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([name, name])))
    text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
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
        ("digits", "400"): 1,
        ("digits", "500"): 1,
        ("", "404"): 6,
        ("digits", "INVALID_ARGUMENT"): 3,
        ("", "NOT_FOUND"): 3,
    }
    sums = [sample.value for sample in family.samples if sample.name.endswith("_sum")]
    assert sum(value > 0 for value in sums) == len(counts) - 1
