"""ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import FoveaError, Unsupported
from fovea_server.grpc.calls import Context, fault, parse
from fovea_server.grpc.infer_request import read_request
from fovea_server.grpc.infer_response import FINAL, response_bytes
from fovea_server.grpc.infer_stream import InferStream, Outcome
from fovea_server.grpc.versions import version_of
from fovea_server.v2.service import Service

log = logging.getLogger(__name__)


class Inference:
    """Runs models.

    Args:
        service: of the protocol.
    """

    def __init__(self, service: Service) -> None:
        self._plane = service.plane
        self._regions = service.regions
        self._most_streamed = service.settings.max_queue
        self._streams: set[InferStream] = set()

    async def infer(self, message: Any) -> bytes:
        """Answer a `ModelInferRequest` with the bytes of a `ModelInferResponse`.

        Raises:
            FoveaError: see `DataPlane.infer`; the request is not sound; the model answers more
                than once.
        """
        version = version_of(message.model_version)
        model = self._plane.registry.find(message.model_name, version)
        if model.config.model_transaction_policy.decoupled:
            raise Unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request, slices = read_request(message, version, self._regions)
        response = await self._plane.infer(request)
        return response_bytes(response, slices, self._regions)

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer a stream of requests; what is wrong with one is said in its answer."""
        stream = InferStream(self._streamed, self._most_streamed)
        self._streams.add(stream)
        try:
            await stream.run(requests, context)
        finally:
            self._streams.discard(stream)

    def close(self) -> None:
        """End the streams, as soon as what they have sent is answered."""
        for stream in self._streams:
            stream.close()

    async def _streamed(self, data: bytes) -> Outcome:
        request_id = ""
        try:
            message = parse(messages.ModelInferRequest, data)
            request_id = message.id
            version = version_of(message.model_version)
            # A model that is not there is told before what is wrong with its tensors.
            self._plane.registry.find(message.model_name, version)
            request, slices = read_request(message, version, self._regions)
            response = await self._plane.infer(request)
            response.parameters[FINAL] = True
            return response_bytes(response, slices, self._regions)
        except FoveaError as error:
            return request_id, error
        except Exception:
            log.exception("a streamed request failed")
            return request_id, fault()
