"""The gRPC server."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import Unavailable
from fovea_server.grpc.calls import Handler, Unary, guard, stream, unary
from fovea_server.grpc.credentials import server_credentials
from fovea_server.grpc.health import AnyRequest, Health
from fovea_server.grpc.inference import Inference
from fovea_server.grpc.models import Models
from fovea_server.grpc.repository import Repository
from fovea_server.grpc.settings import SettingsCalls
from fovea_server.grpc.shared_memory import SharedMemoryCalls
from fovea_server.settings import Settings
from fovea_server.v2.service import Service

log = logging.getLogger(__name__)

# Of a message; protobuf has no larger ones. gRPC's own default is too small for a picture's floats.
_MOST_BYTES = 2**31 - 1
_LEVELS = ("none", "low", "medium", "high")


class GrpcServer:
    """Serves Triton's protocol over gRPC, on the event loop that starts it.

    Args:
        service: of the protocol.

    Attributes:
        port: that it listens on; that of the settings until it is started.

    Raises:
        InvalidOption: the settings of TLS do not do.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._credentials = server_credentials(service.settings)
        self._inference = Inference(service)
        self._health = Health(service.plane.registry)
        self._server: grpc.aio.Server | None = None
        self.port = service.settings.grpc_port

    async def start(self) -> None:
        """Listen, and answer from now on.

        Raises:
            Unavailable: the port is taken, or the address not this machine's.
        """
        settings = self._service.settings
        # It belongs to the loop that runs now.
        server = grpc.aio.server(options=_options(settings))
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "inference.GRPCInferenceService", self._methods()
                ),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", self._probes()),
            )
        )
        self.port = _listen(server, settings, self._credentials)
        await server.start()
        self._server = server
        log.info("gRPC on %s port %d", settings.grpc_address, self.port)

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, and finish what was accepted, for so long."""
        if self._server is None:
            return
        self._inference.close()
        self._health.close()
        await self._server.stop(grace_s)

    def _methods(self) -> dict[str, Handler]:
        service, restrictions = self._service, self._service.grpc_restrictions
        models, repository = Models(service), Repository(service.plane.registry)
        memory, settings = SharedMemoryCalls(service), SettingsCalls(service)
        apis: dict[str, dict[str, Unary]] = {
            "health": {
                "ServerLive": models.live,
                "ServerReady": models.ready,
                "ModelReady": models.model_ready,
            },
            "metadata": {
                "ServerMetadata": models.server_metadata,
                "ModelMetadata": models.metadata,
            },
            "inference": {"ModelInfer": self._inference.infer},
            "model-config": {"ModelConfig": models.config},
            "statistics": {"ModelStatistics": models.statistics},
            "model-repository": {
                "RepositoryIndex": repository.index,
                "RepositoryModelLoad": repository.load,
                "RepositoryModelUnload": repository.unload,
            },
            "shared-memory": {
                "SystemSharedMemoryStatus": memory.system_status,
                "SystemSharedMemoryRegister": memory.register_system,
                "SystemSharedMemoryUnregister": memory.unregister_system,
                "CudaSharedMemoryStatus": memory.cuda_status,
                "CudaSharedMemoryRegister": memory.register_cuda,
                "CudaSharedMemoryUnregister": memory.unregister_cuda,
            },
            "trace": {"TraceSetting": settings.trace},
            "logging": {"LogSettings": settings.log},
        }
        handlers = {
            name: unary(method, getattr(messages, f"{name}Request"), guard(restrictions, api))
            for api, methods in apis.items()
            for name, method in methods.items()
        }
        admit = guard(restrictions, "inference")
        return {**handlers, "ModelStreamInfer": stream(self._inference.stream, admit)}

    def _probes(self) -> dict[str, Handler]:
        admit = guard(self._service.grpc_restrictions, "health")
        return {
            "Check": unary(self._health.check, AnyRequest, admit),
            "Watch": stream(self._health.watch, admit),
        }


def _options(settings: Settings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", _MOST_BYTES),
        ("grpc.max_send_message_length", _MOST_BYTES),
        # A port that is taken is to be told, and not shared.
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
