"""The methods of the gRPC services, with their handlers and access checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import Unsupported
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.grpc import extensions, models
from fovea_server.grpc.calls import Call, Context, Handler, parse, stream, unary
from fovea_server.grpc.health import HealthCalls
from fovea_server.grpc.infer_request import parse_infer
from fovea_server.grpc.inference import Inference

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

Method = Callable[[Service, Message], Awaitable[Message | dict[str, Any]]]

# Method -> its API in restrictions, and its function; the answer is a message, or its fields.
_METHODS: dict[str, tuple[str, Method]] = {
    "ServerLive": ("health", models.live),
    "ServerReady": ("health", models.ready),
    "ModelReady": ("health", models.model_ready),
    "ServerMetadata": ("metadata", models.server),
    "ModelMetadata": ("metadata", models.model),
    "ModelConfig": ("model-config", models.config),
    "ModelStatistics": ("statistics", models.statistics),
    "RepositoryIndex": ("model-repository", models.index),
    "RepositoryModelLoad": ("model-repository", models.load),
    "RepositoryModelUnload": ("model-repository", models.unload),
    "SystemSharedMemoryStatus": ("shared-memory", extensions.system_status),
    "SystemSharedMemoryRegister": ("shared-memory", extensions.register_system),
    "SystemSharedMemoryUnregister": ("shared-memory", extensions.unregister_system),
    "CudaSharedMemoryStatus": ("shared-memory", extensions.cuda_status),
    "CudaSharedMemoryRegister": ("shared-memory", extensions.register_cuda),
    "CudaSharedMemoryUnregister": ("shared-memory", extensions.unregister_cuda),
    "TraceSetting": ("trace", extensions.trace),
    "LogSettings": ("logging", extensions.log),
}


def inference_methods(
    service: Service, inference: Inference, budget: ByteBudget
) -> dict[str, Handler]:
    """Make the handlers of Triton's service, by method."""
    infer, infer_stream = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"
    handlers = {
        "ModelInfer": unary(infer, "inference", parse_infer, inference.infer, service, budget),
        "ModelStreamInfer": stream(infer_stream, "inference", inference.stream, service),
    }
    for name, (api, method) in _METHODS.items():
        read = partial(parse, getattr(messages, f"{name}Request"))
        answer = _answer(service, method, getattr(messages, f"{name}Response"))
        handlers[name] = unary(f"/{INFERENCE}/{name}", api, read, answer, service, budget)
    return handlers


def _answer(
    service: Service, method: Method, response: type[Message]
) -> Callable[[Message], Awaitable[bytes]]:
    async def answer(request: Message) -> bytes:
        found = await method(service, request)
        message = ParseDict(found, response()) if isinstance(found, dict) else found
        data: bytes = message.SerializeToString()
        return data

    return answer


def health_methods(service: Service, health: HealthCalls, budget: ByteBudget) -> dict[str, Handler]:
    """Make the handlers of the health service, by method."""
    # The content of health requests is ignored.
    return {
        "Check": unary(f"/{HEALTH}/Check", "health", bytes, health.check, service, budget),
        "Watch": stream(f"/{HEALTH}/Watch", "health", health.watch, service),
    }


class OtherMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses unknown methods, as gRPC does, but with an id and a line in the log."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Make the handler of any method; a unary call is a stream of one message."""
        return stream(handler_call_details.method, "", _not_found, self._service)


async def _not_found(requests: AsyncIterator[bytes], context: Context, call: Call) -> None:
    raise Unsupported("Method not found!")
