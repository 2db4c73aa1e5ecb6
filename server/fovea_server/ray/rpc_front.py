"""Over gRPC, what a model computes or has counted is asked of its replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from fovea_preprocess.errors import FoveaError
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.grpc.infer_request import InferMessage, parse_infer, version_of
from fovea_server.grpc.inference import Inference, StreamedAnswer
from fovea_server.grpc.methods import Method
from fovea_server.grpc.server import GrpcServer
from fovea_server.ray.behind import CLIENT
from fovea_server.ray.counters import v2_statistics
from fovea_server.ray.forwarder import Forwarder
from fovea_server.ray.link import Link, Metadata
from fovea_server.traffic.call import CALL, REQUEST_ID_HEADER

_PASSED_ON = ("traceparent", "tracestate")


def front_server(service: Service, forwarders: Mapping[str, Forwarder]) -> GrpcServer:
    """Make the server of a front. The next one may listen at its port before it ends."""
    counted = Method("statistics", partial(_statistics, forwarders))
    return GrpcServer(
        service,
        inference=ForwardedInference(service, forwarders),
        replaced={"ModelStatistics": counted},
        shares_port=True,
    )


class _StatisticsRequest(Protocol):
    name: str
    version: str


async def _statistics(
    forwarders: Mapping[str, Forwarder], service: Service, request: _StatisticsRequest
) -> dict[str, Any]:
    version = version_of(request.version)
    counted = await v2_statistics(forwarders, request.name, version)
    return counted or service.models.v2_statistics(request.name or None, version)


class Forwarded(NamedTuple):
    """A request as it came, and what protobuf reads in it."""

    data: bytes
    message: InferMessage

    @property
    def model_name(self) -> str:
        """Name of the requested model."""
        return self.message.model_name


class ForwardedInference(Inference):
    """Runs the models that have replicas there."""

    def __init__(self, service: Service, forwarders: Mapping[str, Forwarder]) -> None:
        super().__init__(service)
        self._forwarders = forwarders

    def read(self, data: bytes) -> Forwarded:  # type: ignore[override]
        """Parse a request, or raise InvalidRequest."""
        return Forwarded(data, parse_infer(data))

    async def _infer(self, message: Forwarded) -> bytes:  # type: ignore[override]
        forwarder = self._forwarders.get(message.model_name)
        if forwarder is None:
            return await super()._infer(message.message)
        return await self._asked(forwarder, lambda link, sent: link.infer(message.data, sent))

    async def streamed(self, data: bytes, reservation: Reservation) -> StreamedAnswer:
        """Answer one request of a stream; its answer stays counted in `reservation`."""
        request_id, model = "", ""
        try:
            fields = parse_infer(data).fields
            request_id, model = fields.id, fields.model_name
            if (forwarder := self._forwarders.get(model)) is None:
                return await super().streamed(data, reservation)
            answer = await self._asked(
                forwarder, lambda link, sent: link.infer_streamed(data, sent)
            )
            return StreamedAnswer(request_id, answer, model)
        except FoveaError as error:
            return StreamedAnswer(request_id, error, model)

    async def _asked(
        self, forwarder: Forwarder, send: Callable[[Link, Metadata], Awaitable[bytes]]
    ) -> bytes:
        call = CALL.get()
        assert call is not None, "a request is being answered"
        metadata = [(REQUEST_ID_HEADER, call.id), (CLIENT, call.client or "")]
        metadata += [(name, value) for name in _PASSED_ON if (value := call.header(name))]
        if call.token is not None:
            metadata.append(("x-api-key", call.token))

        async def sent(link: Link) -> bytes:
            try:
                answer = await send(link, tuple(metadata))
            except FoveaError:
                # The replica measures what it answers.
                call.operation, call.span = "", None
                raise
            call.operation, call.span = "", None
            return answer

        return await forwarder.ask(sent)
