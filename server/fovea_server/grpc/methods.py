"""The methods of the gRPC services, with their handlers and access checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import Unsupported
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.service import Service
from fovea_server.grpc import extensions, models
from fovea_server.grpc.calls import Call, Context, Handler, guard, parse, stream, unary
from fovea_server.grpc.health import HealthCalls
from fovea_server.grpc.infer_request import parse_infer
from fovea_server.grpc.inference import Inference
from fovea_server.traffic.traffic import Traffic

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

Method = Callable[[Service, Message], Awaitable[Message]]


def inference_methods(
    service: Service, inference: Inference, budget: ByteBudget
) -> dict[str, Handler]:
    """Make the handlers of Triton's service, by method."""
    restrictions, traffic = service.grpc_restrictions, service.traffic
    apis: dict[str, dict[str, Method]] = {
        "health": {
            "ServerLive": models.live,
            "ServerReady": models.ready,
            "ModelReady": models.model_ready,
        },
        "metadata": {
            "ServerMetadata": models.server,
            "ModelMetadata": models.model,
        },
        "model-config": {"ModelConfig": models.config},
        "statistics": {"ModelStatistics": models.statistics},
        "model-repository": {
            "RepositoryIndex": models.index,
            "RepositoryModelLoad": models.load,
            "RepositoryModelUnload": models.unload,
        },
        "shared-memory": {
            "SystemSharedMemoryStatus": extensions.system_status,
            "SystemSharedMemoryRegister": extensions.register_system,
            "SystemSharedMemoryUnregister": extensions.unregister_system,
            "CudaSharedMemoryStatus": extensions.cuda_status,
            "CudaSharedMemoryRegister": extensions.register_cuda,
            "CudaSharedMemoryUnregister": extensions.unregister_cuda,
        },
        "trace": {"TraceSetting": extensions.trace},
        "logging": {"LogSettings": extensions.log},
    }
    admit = guard(restrictions, "inference")
    handlers = {
        "ModelInfer": unary(
            f"/{INFERENCE}/ModelInfer", inference.infer, parse_infer, admit, budget, traffic
        ),
        "ModelStreamInfer": stream(
            f"/{INFERENCE}/ModelStreamInfer", inference.stream, admit, traffic
        ),
    }
    for api, methods in apis.items():
        for name, method in methods.items():
            read = partial(parse, getattr(messages, f"{name}Request"))
            full_name, let_in = f"/{INFERENCE}/{name}", guard(restrictions, api)
            answer = partial(method, service)
            handlers[name] = unary(full_name, answer, read, let_in, budget, traffic)
    return handlers


def health_methods(service: Service, health: HealthCalls, budget: ByteBudget) -> dict[str, Handler]:
    """Make the handlers of the health service, by method."""
    admit, traffic = guard(service.grpc_restrictions, "health"), service.traffic
    # The content of health requests is ignored.
    return {
        "Check": unary(f"/{HEALTH}/Check", health.check, bytes, admit, budget, traffic),
        "Watch": stream(f"/{HEALTH}/Watch", health.watch, admit, traffic),
    }


class OtherMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses unknown methods, as gRPC does, but with an id and a line in the log."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Make the handler of any method; a unary call is a stream of one message."""
        return stream(handler_call_details.method, _not_found, lambda context: None, self._traffic)


async def _not_found(requests: AsyncIterator[bytes], context: Context, call: Call) -> None:
    raise Unsupported("Method not found!")
