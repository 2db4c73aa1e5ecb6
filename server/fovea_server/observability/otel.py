"""OpenTelemetry traces: samples requests, makes their spans, and sends them over OTLP."""

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
# The library would log every invalid `tracestate` of a client.
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
# Format of `traceparent`, version 00. As W3C requires, fields that later versions append are
# ignored.
_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})"
    r"(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
# gRPC statuses that mean a fault of the server, by OpenTelemetry's conventions.
_FAULTS = {
    *("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
}
_MAX_SECONDS_AT_EXIT = 5.0


class OtelTracer:
    """Makes a span for a request, and a child span for each stage.

    The sampling decision of a caller is followed. Spans are made after the response from times that
    were measured anyway, so a request that is not sampled costs only the decision.

    Args:
        ratio: share of the requests without a caller's span to trace, 0 to 1.
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
            # `begin` has sampled already.
            sampler=ALWAYS_ON,
            resource=named.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("fovea", version("fovea-serve"))

    def begin(self, traceparent: str | None, tracestate: str | None) -> RequestSpan | None:
        """Decide whether to trace a request; an invalid `traceparent` is ignored."""
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
        """Make the spans of a finished request."""
        # Stages are timed by the monotonic clock, and spans by wall-clock time.
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
            self._failures.report("there was no time for the last spans")
            # `shutdown` ends the exporter's wait before its next attempt.
            self._exporter.shutdown()
            sending.join(_MAX_SECONDS_AT_EXIT)
        for logger in _REPORTING:
            logger.removeHandler(self._failures)
            logger.propagate = True


class _Failures(logging.Handler):
    """Logs once that spans are lost, although the library logs it repeatedly.

    Attributes:
        down: True while spans do not arrive.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.down = self._slow = False

    def emit(self, record: logging.LogRecord) -> None:
        """Report the first warning of the exporter, or that its queue is full."""
        if record.name.startswith(_EXPORTER):
            self.report(record.getMessage())
        elif not (self.down or self._slow):
            self._slow = True
            log.warning("spans are lost (%s): lower --otel-ratio", record.getMessage())

    def report(self, reason: str) -> None:
        """Log that spans do not arrive, unless that was logged already."""
        if not self.down:
            self.down = True
            log.warning(
                "the trace collector does not respond, and spans are dropped until it does (its "
                "URL is OTEL_EXPORTER_OTLP_ENDPOINT): %s",
                reason,
            )

    def over(self) -> None:
        """Log that spans arrive again, if they did not before."""
        if self.down:
            self.down = False
            log.info("spans reach the collector again")


class _OtlpExporter(OTLPSpanExporter):
    """An OTLP exporter over HTTP that reports when it works again."""

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
    # `grpc` is loaded already, because the status came from a gRPC response.
    import grpc

    return {"rpc.system": "grpc", "rpc.grpc.status_code": grpc.StatusCode[status].value[0]}
