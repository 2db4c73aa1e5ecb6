"""OpenTelemetry traces: samples requests, makes their spans, and sends the spans over OTLP."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Sequence
from importlib.metadata import version
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from fovea_preprocess.errors import FoveaError
from fovea_server.observability.spans import RequestSpan

log = logging.getLogger(__name__)

_EXPORTER = "opentelemetry.exporter"
_REPORTING = tuple(map(logging.getLogger, (_EXPORTER, "opentelemetry.sdk")))
# The library would log a warning for every invalid `tracestate` header that a client sends.
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
# Format of the header `traceparent`. Version 00 has exactly these fields. Later versions may append
# fields, which are ignored as W3C requires.
_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})"
    r"(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
# gRPC statuses that are errors of the server, by the conventions of OpenTelemetry.
_FAULTS = {
    *("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
}
_MAX_SECONDS_AT_EXIT = 5.0


class OtelTracer:
    """Makes a span for each traced request, and a child span for each stage.

    If a client sends a span of its own, its sampling decision is followed. Spans are made after the
    response, from times that are measured for every request. So a request that is not sampled costs
    only the decision.

    Args:
        ratio: fraction, from 0 to 1, of the requests to trace among requests without a span of the
            client.
        exporter: receives the spans; by default OTLP over HTTP, configured by OTEL_... variables.
    """

    def __init__(self, ratio: float, exporter: SpanExporter | None = None) -> None:
        self._ratio = ratio
        self._failures = _Failures()
        for logger in _REPORTING:
            logger.addHandler(self._failures)
            logger.propagate = False
        self._exporter = exporter or _OtlpExporter(self._failures)
        named = Resource({"service.name": "fovea", "service.version": version("fovea-serve")})
        self._provider = TracerProvider(
            # `begin` has made the sampling decision already.
            sampler=ALWAYS_ON,
            resource=named.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("fovea", version("fovea-serve"))

    def begin(self, traceparent: str | None, tracestate: str | None) -> RequestSpan | None:
        """Decide whether to trace a request; return its record, or None if it is not traced.

        An invalid `traceparent` is ignored.
        """
        found = None if traceparent is None else _PARENT.fullmatch(traceparent)
        if found is None or (found["version"] == "00" and found["rest"]):
            return RequestSpan(None) if random.random() < self._ratio else None
        flags = int(found["flags"], 16)
        if not flags & TraceFlags.SAMPLED:
            return None
        states = TraceState.from_header([tracestate]) if tracestate else None
        ids = int(found["trace"], 16), int(found["span"], 16)
        return RequestSpan(SpanContext(*ids, True, TraceFlags(flags), states))

    def end(
        self,
        span: RequestSpan,
        model: str,
        status: int | str,
        began: float,
        error: FoveaError | None,
    ) -> None:
        """Make the spans of a finished request from its record."""
        # Stages are measured with the monotonic clock, but spans need wall-clock time.
        offset_ns = time.time_ns() - time.monotonic_ns()

        ended_ns = time.monotonic_ns()
        about = {"fovea.model": model, "fovea.request_id": span.id, **span.attributes}
        about |= _status_attributes(status)
        if error is not None:
            about["error.type"] = error.code
        context = Context()
        if isinstance(span.caller, SpanContext):
            context = set_span_in_context(NonRecordingSpan(span.caller), context)
        server = self._tracer.start_span(
            span.name, context, SpanKind.SERVER, about, start_time=offset_ns + int(began * 1e9)
        )
        below = set_span_in_context(server, context)
        for stage in span.stages:
            began_ns = offset_ns + stage.began_ns
            part = self._tracer.start_span(
                stage.name, below, attributes=stage.attributes, start_time=began_ns
            )
            part.end(began_ns + stage.ns)
        if status in _FAULTS or (isinstance(status, int) and status >= 500):
            server.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
        server.end(offset_ns + ended_ns)

    def close(self) -> None:
        """Send the remaining spans, for a limited time; blocks."""
        sending = Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(0 if self._failures.down else _MAX_SECONDS_AT_EXIT)
        if sending.is_alive():
            self._failures.report("the server stopped before it could send the last spans")
            # `shutdown` ends the exporter's wait for its next attempt.
            self._exporter.shutdown()
            sending.join(_MAX_SECONDS_AT_EXIT)
        for logger in _REPORTING:
            logger.removeHandler(self._failures)
            logger.propagate = True


class _Failures(logging.Handler):
    """Logs only once that spans are lost, although the library logs this repeatedly.

    Attributes:
        down: True while spans cannot be delivered.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.down = self._slow = False

    def emit(self, record: logging.LogRecord) -> None:
        """Report the exporter's first warning, or a warning that its queue is full."""
        if record.name.startswith(_EXPORTER):
            self.report(record.getMessage())
        elif not (self.down or self._slow):
            self._slow = True
            log.warning("spans are lost (%s): lower --otel-ratio", record.getMessage())

    def report(self, reason: str) -> None:
        """Log that spans are lost, unless this was logged already."""
        if not self.down:
            self.down = True
            log.warning(
                "spans are dropped, because the trace collector does not respond: check "
                "OTEL_EXPORTER_OTLP_ENDPOINT (%s)",
                reason,
            )

    def over(self) -> None:
        """Log that spans are delivered again, if they were lost before."""
        if self.down:
            self.down = False
            log.info("the trace collector accepts spans again")


class _OtlpExporter(OTLPSpanExporter):
    """An OTLP exporter over HTTP that reports the first delivery after a failure."""

    def __init__(self, failures: _Failures) -> None:
        super().__init__()
        self._failures = failures

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; the thread of the span processor calls this."""
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._failures.over()
        return result


def _status_attributes(status: int | str) -> dict[str, str | int]:
    if isinstance(status, int):
        return {"http.response.status_code": status}
    # This import is cheap: the module is loaded already, because the status is from a gRPC
    # response.
    import grpc

    return {"rpc.system": "grpc", "rpc.grpc.status_code": grpc.StatusCode[status].value[0]}
