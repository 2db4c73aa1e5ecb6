"""Triton's service over gRPC, as Ray's proxy calls it: a method of the ingress for each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from fovea_cluster.ray.counters import v2_statistics
from fovea_cluster.ray.forwarder import Forwarder
from fovea_cluster.ray.replica import Serving
from fovea_cluster.ray.rpc import RpcAnswer, RpcContext, called, streamed
from fovea_preprocess.errors import FoveaError
from fovea_server.byte_budget import Reservation
from fovea_server.error_status import grpc_status
from fovea_server.grpc.calls import Context, Rpc, call_of, stream
from fovea_server.grpc.infer_request import parse_infer
from fovea_server.grpc.inference import InferStream, StreamedAnswer
from fovea_server.grpc.models import statistics_asked, statistics_bytes
from fovea_server.grpc.server import INFERENCE, METHODS
from fovea_server.traffic.call import CALL

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext, gRPCInputStream


class Encoded:
    """The bytes of a message, in the place of the message that Ray asks for them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        """Return the bytes."""
        return self._data


class Servicer:
    """The methods of Triton's service. Ray calls them by name, each with the bytes of a message.

    Those that ask a model to compute go to its replicas; the others are answered here, by the
    handlers of `fovea serve`.
    """

    def __init__(self, serving: Serving, forwarders: Mapping[str, Forwarder]) -> None:
        self.serving = serving
        self.forwarders = forwarders
        for method in METHODS.keys() - vars(Servicer).keys():
            setattr(self, method, self._local(method))

    def _local(self, method: str) -> Callable[..., Any]:
        async def answer(request: bytes, grpc_context: RayServegRPCContext) -> Encoded:
            return _ended(await self._called(method, request, grpc_context), grpc_context)

        return answer

    async def _called(self, method: str, request: bytes, context: RayServegRPCContext) -> RpcAnswer:
        own = RpcContext(context.invocation_metadata(), context.peer(), request)
        return await called(self.serving.handlers[method], own)

    async def ModelInfer(  # noqa: N802 (Triton's name)
        self, request: bytes, grpc_context: RayServegRPCContext
    ) -> Encoded:
        """Forward to a replica of the model."""
        service, metadata = self.serving.service, grpc_context.invocation_metadata()
        path, peer = f"/{INFERENCE}/ModelInfer", grpc_context.peer()
        call = call_of(path, RpcContext(metadata, peer), service.traffic)
        call.infers(path.removeprefix("/"))
        try:
            with service.budget.body() as hold:
                hold(len(request))
                call.model = parse_infer(request).model_name
                forwarder = self.forwarders.get(call.model)
                if forwarder is not None:
                    answer = await forwarder.ask("rpc", "ModelInfer", request, metadata, peer)
            if forwarder is None:
                answer = await self._called("ModelInfer", request, grpc_context)
        except FoveaError as error:
            answer = RpcAnswer(b"", grpc_status(error), str(error))
            # What is forwarded is measured by the replica.
            call.measure(answer.status, error)
        return _ended(answer, grpc_context)

    async def ModelStatistics(  # noqa: N802 (Triton's name)
        self, request: bytes, grpc_context: RayServegRPCContext
    ) -> Encoded:
        """Count what all replicas have answered."""
        answer = await self._called("ModelStatistics", request, grpc_context)
        if answer.status == "OK":
            asked = statistics_asked(request)
            if (found := await v2_statistics(self.forwarders, *asked)) is not None:
                answer = answer._replace(data=statistics_bytes(found))
        return _ended(answer, grpc_context)

    async def ModelStreamInfer(  # noqa: N802 (Triton's name)
        self, request_stream: gRPCInputStream[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncIterator[Encoded]:
        """Forward each request of a stream; they run side by side, and are answered in order."""
        context = RpcContext(grpc_context.invocation_metadata(), grpc_context.peer())
        name, serving = f"/{INFERENCE}/ModelStreamInfer", self.serving
        handler = stream(name, "inference", self._stream, serving.service, serving.arrivals)
        async for data in streamed(handler, request_stream, context):
            yield Encoded(data)
        _ended(context.answer(b""), grpc_context)

    async def _stream(self, requests: AsyncIterator[bytes], context: Context, rpc: Rpc) -> None:
        service, budget = self.serving.service, self.serving.service.budget
        most = service.settings.max_queue
        await InferStream(self._streamed, most, budget).run(requests, context, rpc)

    async def _streamed(self, data: bytes, reservation: Reservation) -> StreamedAnswer:
        request_id, model = "", ""
        try:
            fields = parse_infer(data).fields
            request_id, model = fields.id, fields.model_name
            if (forwarder := self.forwarders.get(model)) is not None:
                answer: StreamedAnswer = await forwarder.ask("streamed", data, _token())
                return answer
        except FoveaError as error:
            return StreamedAnswer(request_id, error, model)
        return await self.serving.inference.streamed(data, reservation)


def _token() -> str | None:
    call = CALL.get()
    return None if call is None else call.token


def _ended(answer: RpcAnswer, context: RayServegRPCContext) -> Encoded:
    """Give Ray the status and the rest of an answer."""
    if answer.status != "OK":
        context.set_code(grpc.StatusCode[answer.status])
        context.set_details(answer.details)
    context.set_trailing_metadata(list(answer.trailing))
    return Encoded(answer.data)
