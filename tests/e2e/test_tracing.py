"""Traces of a real server reach a real OTLP receiver, over v1, v2 and gRPC."""

import queue
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread

import httpx
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.e2e.conftest import images
from tests.serving import RunningServer, free_ports, start_server
from tritonclient import grpc as triton
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

STAGES = ["queue", "decode", "letterbox", "infer", "postprocess"]
OF_TENSORS = ["queue", "input", "infer", "output"]


class Collector:
    """Keeps the spans that it gets, and the attributes of who sent them."""

    def __init__(self) -> None:
        self.url = ""
        self.sender: dict[str, str] = {}
        self._spans: list[Span] = []
        self._arrived = Condition()

    def add(self, body: bytes) -> None:
        with self._arrived:
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                for each in sent.resource.attributes:
                    self.sender[each.key] = each.value.string_value
                for scope in sent.scope_spans:
                    self._spans += scope.spans
            self._arrived.notify_all()

    def has(self, trace_id: str) -> bool:
        """Return True if a span of that trace has arrived."""
        with self._arrived:
            return any(span.trace_id.hex() == trace_id for span in self._spans)

    def trace(self, trace_id: str) -> tuple[Span, list[Span]]:
        """The server's span of a trace, once it is there, and those of the stages by time.

        The spans of a request arrive together, that of the server last.
        """

        def of_trace() -> list[Span]:
            return [span for span in self._spans if span.trace_id.hex() == trace_id]

        def served() -> list[Span]:
            return [span for span in of_trace() if span.kind == Span.SPAN_KIND_SERVER]

        with self._arrived:
            assert self._arrived.wait_for(served, timeout=60), "no span has arrived"
            [server] = served()
            parts = [span for span in of_trace() if span is not server]
        return server, sorted(parts, key=lambda span: span.start_time_unix_nano)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.add(self.rfile.read(int(self.headers["content-length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *about: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        yield collector
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(demo_batches, collector, tmp_path_factory) -> Iterator[RunningServer]:
    """A server that traces what its callers trace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        flags = ("--otel", "--otel-ratio=0")
        server = start_server(demo_batches, tmp_path_factory.mktemp("log"), flags)
    yield server
    assert server.stop() == 0


class Caller:
    """A span of a client, and the headers that it sends."""

    def __init__(self, flags: str = "01") -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        parent = f"00-{self.trace}-{self.span}-{flags}"
        self.headers = {"traceparent": parent, "tracestate": "test=1"}


def attributes(span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def check(collector: Collector, caller: Caller, stages: list[str]) -> tuple[dict, list]:
    """The attributes of a request's span, and its stages, which lie in it end to end."""
    server, parts = collector.trace(caller.trace)
    assert server.parent_span_id.hex() == caller.span
    assert server.trace_state == "test=1"
    assert sorted(part.name for part in parts) == sorted(stages)
    parts.sort(key=lambda part: stages.index(part.name))
    at = server.start_time_unix_nano
    for part in parts:
        assert part.parent_span_id == server.span_id
        assert part.start_time_unix_nano >= at - 1000
        at = part.end_time_unix_nano
    assert at <= server.end_time_unix_nano
    return attributes(server), parts


def over_v1(server: RunningServer, scene: bytes, headers: dict[str, str]) -> str:
    answer = httpx.post(server.predict_url("digits"), content=scene, headers=headers)
    assert answer.status_code == 200
    return "POST /v1/models/{model}/predict"


def drawn_over_v1(server: RunningServer, scene: bytes, headers: dict[str, str]) -> str:
    return over_v1(server, scene, headers | {"accept": "image/jpeg"})


def over_v2(server: RunningServer, scene: bytes, headers: dict[str, str]) -> str:
    url, bare = f"{server.url}/v2/models/digits/infer", {"inference-header-content-length": "0"}
    assert httpx.post(url, content=scene, headers=headers | bare).status_code == 200
    return "POST /v2/models/{model}/infer"


def over_grpc(server: RunningServer, scene: bytes, headers: dict[str, str]) -> str:
    with InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.infer("digits", images(triton, scene, name="images"), headers=headers)
    return "inference.GRPCInferenceService/ModelInfer"


def over_a_stream(server: RunningServer, scene: bytes, headers: dict[str, str]) -> str:
    answers: queue.Queue = queue.Queue()
    with InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error), headers=headers)
        client.async_stream_infer("digits", images(triton, scene, name="images"))
        assert answers.get(timeout=60) is None
        client.stop_stream()
    return "inference.GRPCInferenceService/ModelStreamInfer"


DIGITS = {
    **{"fovea.model": "digits", "fovea.version": "1", "fovea.backend": "onnxruntime"},
    **{"fovea.precision": "fp32", "fovea.batch": 1, "fovea.images": 1},
}


@pytest.mark.parametrize("ask", [over_v1, drawn_over_v1, over_v2, over_grpc, over_a_stream])
def test_a_request_has_a_span_with_its_stages(traced, collector, scene, ask):
    caller = Caller()
    name = ask(traced, scene, caller.headers | {"x-request-id": caller.span})
    told, _ = check(collector, caller, STAGES)
    # A status of 0 is the default of protobuf, which `attributes` reads.
    rpc = {"rpc.system": "grpc", "rpc.grpc.status_code": 0}
    carried = {"http.response.status_code": 200} if name.startswith("POST") else rpc
    assert told == DIGITS | carried | {"fovea.request_id": caller.span}
    server, _ = collector.trace(caller.trace)
    assert server.name == name
    assert collector.sender["service.name"] == "fovea"
    assert collector.sender["service.version"]
    assert collector.sender["deployment.environment"] == "test"


def test_each_image_of_a_request_has_its_stages(traced, collector, scene, second_scene):
    caller = Caller()
    files = [("image", ("a.jpg", scene)), ("image", ("b.jpg", second_scene))]
    answer = httpx.post(traced.predict_url("digits"), files=files, headers=caller.headers)
    assert answer.status_code == 200, answer.text
    _, parts = collector.trace(caller.trace)
    timing = answer.json()["timing_ms"]
    assert len(parts) == 2 * len(STAGES)
    for stage in STAGES:
        pair = [part for part in parts if part.name == stage]
        assert {attributes(part).get("fovea.image", 0) for part in pair} == {0, 1}
        longest = max(part.end_time_unix_nano - part.start_time_unix_nano for part in pair)
        assert longest / 1e6 == pytest.approx(timing[stage], abs=0.01)


def test_tensors_over_grpc(traced, collector):
    caller, other = Caller(), Caller()
    with InferenceServerClient(f"127.0.0.1:{traced.grpc_port}") as client:
        config = client.get_model_metadata("digits").inputs[0]
        shape = [2, *config.shape[1:]]
        tensor = InferInput(config.name, shape, config.datatype)
        tensor.set_data_from_numpy(np.zeros(shape, np.float32))
        client.infer("digits", [tensor], headers=caller.headers)
        with pytest.raises(InferenceServerException):
            client.infer("nobody", [tensor], headers=other.headers)
    told, _ = check(collector, caller, OF_TENSORS)
    assert told["fovea.batch"] == 2
    assert "fovea.images" not in told
    told, _ = check(collector, other, [])
    assert (told["fovea.model"], told["rpc.grpc.status_code"]) == ("nobody", 5)


def test_refused_requests_have_a_span(traced, collector, scene):
    for model, content, status in (("nobody", scene, 404), ("digits", b"none", 400)):
        caller = Caller()
        answer = httpx.post(traced.predict_url(model), content=content, headers=caller.headers)
        assert answer.status_code == status
        server, _ = collector.trace(caller.trace)
        told = attributes(server)
        assert (told["fovea.model"], told["http.response.status_code"]) == (model, status)
        assert told["error.type"] == answer.json()["error"]["code"]


def test_who_is_not_sampled_is_not_traced_and_health_never_is(traced, collector, scene):
    unsampled, probe, last = Caller("00"), Caller(), Caller()
    url = traced.predict_url("digits")
    for headers in ({}, unsampled.headers):
        assert httpx.post(url, content=scene, headers=headers).status_code == 200
    httpx.get(f"{traced.url}/v2/health/ready", headers=probe.headers)
    httpx.get(f"{traced.url}/v1/health/ready", headers=probe.headers)
    httpx.post(url, content=scene, headers=last.headers)
    # Spans arrive in the order of their requests.
    collector.trace(last.trace)
    assert not collector.has(unsampled.trace)
    assert not collector.has(probe.trace)


def test_spans_that_wait_are_sent_before_the_end(
    demo_batches, collector, scene, serve, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    server, caller = serve(demo_batches, "--otel"), Caller()
    httpx.post(server.predict_url("digits"), content=scene, headers=caller.headers)
    assert server.stop() == 0
    collector.trace(caller.trace)


def test_a_collector_that_is_down_is_one_warning_and_no_delay(
    demo_batches, scene, serve, monkeypatch
):
    [nobody] = free_ports(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    server = serve(demo_batches, "--otel")
    until = time.monotonic() + 60
    while "the trace collector does not respond" not in (text := server.log.read_text()):
        assert time.monotonic() < until, text
        assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    for _ in range(5):
        assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    assert server.stop() == 0
    text = server.log.read_text()
    assert text.count("WARNING") == text.count("the trace collector does not respond") == 1
    assert "Traceback" not in text
