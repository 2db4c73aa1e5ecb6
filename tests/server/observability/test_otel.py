"""Spans of requests, in process: who is traced, and what a span says."""

import logging
import sys
import time

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_server.app import build_app
from fovea_server.observability.otel import OtelTracer
from fovea_server.observability.spans import Stage
from fovea_server.settings import Settings
from fovea_server.traffic.call import Call
from fovea_server.traffic.traffic import Traffic

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    """A tracer that traces what its caller traces."""
    tracer = OtelTracer(0.0, exporter)
    yield tracer
    tracer.close()


def end(tracer: OtelTracer, exporter: InMemorySpanExporter, span, status=200, error=None):
    """The spans of a request, that of the server last."""
    span.name, span.id = "POST /v1/models/{model}/predict", "one"
    tracer.end(span, "digits", status, time.monotonic() - 0.5, error)
    tracer._provider.force_flush()
    return exporter.get_finished_spans()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        SAMPLED.upper(),
        SAMPLED[:-1],
        f"{SAMPLED}-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_a_header_that_is_not_valid_counts_as_none(tracer, exporter, header):
    assert tracer.begin(header, None) is None
    all_traced = OtelTracer(1.0, exporter)
    [made] = end(all_traced, exporter, all_traced.begin(header, None))
    assert made.parent is None
    assert made.context.trace_id != int(TRACE, 16)
    all_traced.close()


def test_the_callers_decision_is_followed(tracer, exporter):
    assert tracer.begin(SAMPLED, None) is not None
    # A later version may add fields.
    assert tracer.begin(f"01{SAMPLED[2:]}-more", None) is not None
    all_traced = OtelTracer(1.0, exporter)
    assert all_traced.begin(f"00-{TRACE}-{PARENT}-00", None) is None
    all_traced.close()


def test_the_ratio_is_that_of_requests_without_a_caller(exporter):
    half = OtelTracer(0.5, exporter)
    chosen = sum(half.begin(None, None) is not None for _ in range(10_000))
    half.close()
    # Ten standard deviations on both sides.
    assert 4500 < chosen < 5500


def test_a_span_has_its_caller_its_stages_and_its_facts(tracer, exporter):
    span = tracer.begin(SAMPLED, "vendor=value")
    began_ns = time.monotonic_ns() - 400_000_000
    span.attributes |= {"fovea.version": "2", "fovea.batch": 4}
    span.stages += [
        Stage("queue", began_ns, 100_000_000, {}),
        Stage("infer", began_ns + 100_000_000, 250_000_000, {"n": 1}),
    ]
    queue, infer, server = end(tracer, exporter, span)
    assert (server.name, server.kind) == ("POST /v1/models/{model}/predict", SpanKind.SERVER)
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == PARENT
    assert server.parent.is_remote
    assert server.context.trace_state == {"vendor": "value"}
    assert dict(server.attributes) == {
        "fovea.model": "digits",
        "fovea.request_id": "one",
        "fovea.version": "2",
        "fovea.batch": 4,
        "http.response.status_code": 200,
    }
    assert server.status.status_code is StatusCode.UNSET
    assert 0.5e9 <= server.end_time - server.start_time < 30e9
    assert abs(server.end_time - time.time_ns()) < 30e9
    for part, seconds in ((queue, 0.1), (infer, 0.25)):
        assert part.parent.span_id == server.context.span_id
        assert part.end_time - part.start_time == round(1e9 * seconds)
        assert server.start_time < part.start_time < part.end_time < server.end_time
    assert dict(infer.attributes) == {"n": 1}


@pytest.mark.parametrize(
    ("status", "fault"), [(404, False), (500, True), ("NOT_FOUND", False), ("INTERNAL", True)]
)
def test_only_the_servers_faults_are_errors(tracer, exporter, status, fault):
    span = tracer.begin(SAMPLED, None)
    [server] = end(tracer, exporter, span, status, NotFound("there is no model"))
    assert (server.status.status_code is StatusCode.ERROR) == fault
    assert server.attributes["error.type"] == "not_found"
    name = "http.response.status_code" if isinstance(status, int) else "rpc.grpc.status_code"
    assert server.attributes[name] == {"NOT_FOUND": 5, "INTERNAL": 13}.get(status, status)


def test_names_of_clients_are_cut(tracer, exporter):
    traffic = Traffic((), log_access=False, tracer=tracer)
    call = Call(traffic, "POST", "/v2", None, {"traceparent": SAMPLED}.get)
    call.infers("POST /v2/models/{model}/infer")
    call.model = "x" * 5000
    traffic.measure(call, 404, None)
    tracer._provider.force_flush()
    [server] = exporter.get_finished_spans()
    assert len(server.attributes["fovea.model"]) < 1100


def test_a_tracestate_that_is_not_valid_is_left_out_in_silence(tracer, caplog):
    assert tracer.begin(SAMPLED, "=,\x00") is not None
    assert caplog.records == []


def test_lost_spans_are_reported_once(tracer, caplog):
    for name in ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal"):
        for _ in range(3):
            logging.getLogger(name).warning("nobody is there")
    # caplog also sees what stays in the library's loggers.
    [record] = [one for one in caplog.records if one.name.startswith("fovea")]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in record.getMessage()
    assert "nobody is there" in record.getMessage()


def test_a_service_without_it_loads_nothing_and_one_without_the_extra_says_so(
    tmp_path, monkeypatch
):
    plain = Settings(model_repository=tmp_path)
    assert build_app(plain).service.traffic.tracer is None
    for name in list(sys.modules):
        if name.startswith("fovea_server.observability.otel"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    asked = Settings(model_repository=tmp_path, otel=True)
    with pytest.raises(InvalidOption, match="--otel"):
        build_app(asked)
