"""A collector: an OTLP receiver on a real port."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


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
