"""The gRPC server and the methods of its services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import Unavailable, Unsupported
from fovea_server.dataplane.service import Service
from fovea_server.grpc import models
from fovea_server.grpc.arrivals import Arrivals
from fovea_server.grpc.calls import Context, Handler, Rpc, parse, parse_short, stream, unary
from fovea_server.grpc.inference import Inference
from fovea_server.grpc.methods import METHODS, Method
from fovea_server.settings import Settings
from fovea_server.tls import check_grpc_files

log = logging.getLogger(__name__)

# Largest size of a protobuf message in bytes. The same value disables limits of gRPC.
_MAX = 2**31 - 1
# Largest number of concurrent calls per connection. Clients queue further calls. HTTP/2 recommends
# at least 100. A small number keeps waits short, because the core starts the calls of all clients
# in order of arrival.
_MAX_STREAMS = 100
# Largest number of connections. The clients of a real server open fewer connections.
_MAX_CONNECTIONS = 4096
# Name of the logger that gRPC's core uses in Python.
_CORE_LOG = "grpc._cython.cygrpc"
_LEVELS = ("none", "low", "medium", "high")

INFERENCE = "inference.GRPCInferenceService"
_HEALTH = "grpc.health.v1.Health"


class GrpcServer:
    """Serves Triton's protocol over gRPC, on the event loop that starts it.

    Args:
        service: service that answers the requests.
        inference: object that runs models; None to run the models of the service.
        replaced: dict from the name of a method of Triton's service to a replacement.
        interceptors: gRPC interceptors for all calls.
        shares_port: True if several servers may listen on the same port.

    Attributes:
        port: port in the settings; after the start, the port on which the server listens.

    Raises:
        InvalidOption: a TLS file is invalid.
    """

    def __init__(
        self,
        service: Service,
        *,
        inference: Inference | None = None,
        replaced: Mapping[str, Method] = MappingProxyType({}),
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        shares_port: bool = False,
    ) -> None:
        self._service = service
        settings = service.settings
        self._certificates = server_certificates(settings)
        self._credentials = (
            None
            if self._certificates is None
            else grpc.dynamic_ssl_server_credentials(
                self._certificates,
                # The third argument is a function that gRPC calls at each handshake.
                lambda: self._certificates,
                require_client_authentication=settings.grpc_use_ssl_mutual,
            )
        )
        self._arrivals = Arrivals(service.budget, service.settings)
        self._inference = inference or Inference(service)
        self._methods, self._interceptors = {**METHODS, **replaced}, interceptors
        self._shares_port = shares_port
        self._health = models.HealthCalls(service.plane)
        self._server: grpc.aio.Server | None = None
        self.port = service.settings.grpc_port

    async def start(self) -> None:
        """Bind the port and start to serve.

        Raises:
            Unavailable: the port is in use, or the address does not belong to this machine.
        """
        settings = self._service.settings
        logging.getLogger(_CORE_LOG).addFilter(_is_news)
        # Create the server here instead of in the constructor, because it belongs to the running
        # event loop.
        server = grpc.aio.server(
            interceptors=self._interceptors, options=_options(settings, self._shares_port)
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(INFERENCE, self._inference_methods()),
                self._health_methods(),
                _OtherMethods(self._service, self._arrivals),
            )
        )
        self.port = _listen(server, settings, self._credentials)
        await server.start()
        self._server = server
        log.info("gRPC on %s port %d", settings.grpc_address, self.port)

    def reload(self) -> None:
        """Read the certificates again. New connections use them.

        After an error, the old certificates stay.

        Raises:
            InvalidOption: a file is invalid.
            OSError: a file cannot be read.
        """
        if self._certificates is not None:
            self._certificates = server_certificates(self._service.settings)

    async def stop(self, grace_s: float) -> None:
        """Reject new calls, and wait up to `grace_s` seconds until accepted calls end."""
        if self._server is None:
            return
        async with self._inference.hold_answers():
            self._inference.close()
            self._health.close()
            stopping = asyncio.create_task(self._server.stop(grace_s))
        await stopping

    def _inference_methods(self) -> dict[str, Handler]:
        top, given, inference = f"/{INFERENCE}", (self._service, self._arrivals), self._inference
        infer, streamed = f"{top}/ModelInfer", f"{top}/ModelStreamInfer"
        handlers = {
            "ModelInfer": unary(infer, "inference", inference.read, inference.infer, *given),
            "ModelStreamInfer": stream(streamed, "inference", inference.stream, *given),
        }
        for name, each in self._methods.items():
            # A request to load a model may contain the model's files, so its size is not limited
            # here.
            reader = parse if each.changes is True else parse_short
            read = partial(reader, getattr(messages, f"{name}Request"))
            answer = _answer(self._service, each, getattr(messages, f"{name}Response"))
            handlers[name] = unary(f"{top}/{name}", each.api, read, answer, *given, each.changes)
        return handlers

    def _health_methods(self) -> grpc.GenericRpcHandler:
        top, service, health = f"/{_HEALTH}", self._service, self._health
        arrivals = self._arrivals
        # The handlers ignore the content of health requests.
        handlers = {
            "Check": unary(f"{top}/Check", "health", bytes, health.check, service, arrivals),
            "Watch": stream(f"{top}/Watch", "health", health.watch, service, arrivals),
        }
        return grpc.method_handlers_generic_handler(_HEALTH, handlers)


def _answer(
    service: Service, method: Method, response: type[Message]
) -> Callable[[Message], Awaitable[bytes]]:
    async def answer(request: Message) -> bytes:
        found = await method.answer(service, request)
        message = ParseDict(found, response()) if isinstance(found, dict) else found
        data: bytes = message.SerializeToString()
        return data

    return answer


class _OtherMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Rejects calls of unknown methods like gRPC, but with a request ID and a log line."""

    def __init__(self, service: Service, arrivals: Arrivals) -> None:
        self._service, self._arrivals = service, arrivals

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that fits every method: a unary call is a stream with one message."""
        return stream(handler_call_details.method, "", _not_found, self._service, self._arrivals)


async def _not_found(requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
    raise Unsupported("Method not found!")


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record of gRPC contains news.

    If a client disconnected during a call, only the access log reports it.
    """
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, grpc.aio.InternalError)


def _options(settings: Settings, shares_port: bool) -> list[tuple[str, int]]:
    compression = _LEVELS.index(settings.grpc_infer_response_compression_level)
    idle = int(settings.grpc_keepalive_permit_without_calls)
    largest = min(settings.http_max_input_size, settings.max_inflight_bytes, _MAX)
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", _MAX),
        # By default, gRPC cancels random calls without a reason if a thousand calls wait for the
        # event loop. Fovea rejects requests with a reason instead (`--max-queue` and
        # `--max-inflight-mb`).
        ("grpc.server.max_pending_requests", _MAX),
        ("grpc.server.max_pending_requests_hard_limit", _MAX),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        # By default, gRPC rejects streams of a burst that the client opens before it has received
        # the limit.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
        # By default, gRPC shares a port that is in use. Fovea reports an error instead.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.default_compression_level", compression),
        ("grpc.keepalive_time_ms", settings.grpc_keepalive_time),
        ("grpc.keepalive_timeout_ms", settings.grpc_keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", idle),
    ]


def _listen(
    server: grpc.aio.Server, settings: Settings, credentials: grpc.ServerCredentials | None
) -> int:
    host, port = settings.grpc_address, settings.grpc_port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            bound: int = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise Unavailable(
            f"cannot listen on {host} port {port}: stop the program that uses the port, or choose "
            "another port with --grpc-port"
        ) from None
    return bound


def server_certificates(settings: Settings) -> grpc.ServerCertificateConfiguration | None:
    """Return the certificates from the files for TLS, or None if gRPC is served without TLS.

    Raises:
        InvalidOption: a file is not set or cannot be used.
    """
    check_grpc_files(settings)
    key, certificate = settings.grpc_server_key, settings.grpc_server_cert
    used = settings.grpc_use_ssl or settings.grpc_use_ssl_mutual
    if not used or key is None or certificate is None:
        return None
    root = settings.grpc_root_cert
    pair = key.read_bytes(), certificate.read_bytes()
    return grpc.ssl_server_certificate_configuration(
        [pair], None if root is None else root.read_bytes()
    )
