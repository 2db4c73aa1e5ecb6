"""The gRPC server."""

from __future__ import annotations

import logging

import grpc

from fovea_preprocess.errors import Unavailable
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.grpc.health import HealthCalls
from fovea_server.grpc.inference import Inference
from fovea_server.grpc.methods import (
    HEALTH,
    INFERENCE,
    OtherMethods,
    health_methods,
    inference_methods,
)
from fovea_server.settings import Settings
from fovea_server.tls import check_grpc_files

log = logging.getLogger(__name__)

# The largest message of protobuf; gRPC's default is too small for an image as floats.
_MOST_BYTES = 2**31 - 1
# Concurrent calls: more than the clients of one machine make, and few enough to track.
_MOST_CALLS = 4096
_LEVELS = ("none", "low", "medium", "high")


class GrpcServer:
    """Serves Triton's protocol over gRPC, on the event loop that starts it.

    Attributes:
        port: that it listens on; the one in the settings until it is started.

    Raises:
        InvalidOption: the settings of TLS are invalid.
    """

    def __init__(self, service: Service, budget: ByteBudget) -> None:
        self._service = service
        self._credentials = server_credentials(service.settings)
        self._budget = budget
        self._inference = Inference(service, budget)
        self._health = HealthCalls(service.plane)
        self._server: grpc.aio.Server | None = None
        self.port = service.settings.grpc_port

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            Unavailable: the port is taken, or the address is not this machine's.
        """
        settings = self._service.settings
        # Made here, because it belongs to the running event loop.
        server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=_MOST_CALLS)
        inference = inference_methods(self._service, self._inference, self._budget)
        health = health_methods(self._service, self._health, self._budget)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(INFERENCE, inference),
                grpc.method_handlers_generic_handler(HEALTH, health),
                OtherMethods(self._service),
            )
        )
        self.port = _listen(server, settings, self._credentials)
        await server.start()
        self._server = server
        log.info("gRPC on %s port %d", settings.grpc_address, self.port)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and finish accepted ones within the grace period."""
        if self._server is None:
            return
        self._inference.close()
        self._health.close()
        await self._server.stop(grace_s)


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        # A single request may use the whole budget.
        ("grpc.max_receive_message_length", min(settings.max_held_bytes, _MOST_BYTES)),
        ("grpc.max_send_message_length", _MOST_BYTES),
        # A taken port must be an error, and not be shared.
        ("grpc.so_reuseport", 0),
        (
            "grpc.default_compression_level",
            _LEVELS.index(settings.grpc_infer_response_compression_level),
        ),
        ("grpc.keepalive_time_ms", settings.grpc_keepalive_time),
        ("grpc.keepalive_timeout_ms", settings.grpc_keepalive_timeout),
        (
            "grpc.keepalive_permit_without_calls",
            int(settings.grpc_keepalive_permit_without_calls),
        ),
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
            f"cannot listen on {host} port {port}: stop what uses it, or choose another with "
            "--grpc-port"
        ) from None
    return bound


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Read the server's credentials for TLS; None where it serves without TLS.

    Raises:
        InvalidOption: a file is not named, cannot be read, or is not valid.
    """
    check_grpc_files(settings)
    key, certificate = settings.grpc_server_key, settings.grpc_server_cert
    mutual = settings.grpc_use_ssl_mutual
    if not (settings.grpc_use_ssl or mutual) or key is None or certificate is None:
        return None
    root = settings.grpc_root_cert
    trusted = None if root is None else root.read_bytes()
    pair = key.read_bytes(), certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], trusted, require_client_auth=mutual)
