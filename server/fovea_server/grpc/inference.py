"""The calls ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from fovea_preprocess.errors import FoveaError
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.refusals import refuse_decoupled
from fovea_server.dataplane.service import Service
from fovea_server.extensions.regions import SharedOutput
from fovea_server.grpc.call import Call, Context
from fovea_server.grpc.calls import LARGE, fault
from fovea_server.grpc.infer_message import InferMessage, parse_infer
from fovea_server.grpc.infer_request import read_request
from fovea_server.grpc.infer_response import FINAL, response_bytes
from fovea_server.grpc.infer_stream import InferStream, StreamedAnswer
from fovea_server.grpc.versions import version_of
from fovea_server.tensors.messages import InferRequest, InferResponse

log = logging.getLogger(__name__)

# Copying an output of this many bytes would block the event loop. Elements of BYTES are pointers
# here, and are copied one by one.
_LARGE_NUMBERS = 4 << 20
_LARGE_STRINGS = 64 << 10


class Inference:
    """Runs models.

    Args:
        budget: counts the bytes of streams.
    """

    def __init__(self, service: Service, budget: ByteBudget) -> None:
        self._plane = service.plane
        self._regions = service.regions
        self._budget = budget
        self._traffic = service.traffic
        self._most_streamed = service.settings.max_queue
        self._streams: set[InferStream] = set()

    async def infer(self, message: InferMessage) -> bytes:
        """Answer a request with the bytes of a `ModelInferResponse`.

        Raises:
            FoveaError: see `DataPlane.infer`; the request is invalid; the model is decoupled.
        """
        version = version_of(message.fields.model_version)
        model = self._plane.find(message.fields.model_name, version)
        refuse_decoupled(model, "ModelInfer RPC")
        request, shared = await self._request(message, version)
        return await _answer(await self._plane.infer(model, request), shared)

    async def stream(self, requests: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Answer a stream of requests; an error of one is in its answer."""
        stream = InferStream(self._streamed, self._most_streamed, self._budget, self._traffic)
        self._streams.add(stream)
        try:
            await stream.run(requests, context, call)
        finally:
            self._streams.discard(stream)

    def close(self) -> None:
        """End each stream as soon as its requests are answered."""
        for stream in self._streams:
            stream.close()

    async def _streamed(self, data: bytes) -> StreamedAnswer:
        request_id, model, large = "", "", len(data) >= LARGE
        try:
            message = await asyncio.to_thread(parse_infer, data) if large else parse_infer(data)
            request_id, model = message.fields.id, message.model_name
            version = version_of(message.fields.model_version)
            # An unknown model is reported before what is wrong with the tensors.
            found = self._plane.find(message.fields.model_name, version)
            request, shared = await self._request(message, version)
            response = await self._plane.infer(found, request)
            response.parameters[FINAL] = True
            return StreamedAnswer(request_id, await _answer(response, shared), model)
        except FoveaError as error:
            return StreamedAnswer(request_id, error, model)
        except Exception:
            log.exception("a streamed request failed")
            return StreamedAnswer(request_id, fault(), model)

    async def _request(
        self, message: InferMessage, version: int | None
    ) -> tuple[InferRequest, dict[str, SharedOutput]]:
        if message.size < LARGE:
            return read_request(message, version, self._regions)
        return await asyncio.to_thread(read_request, message, version, self._regions)


async def _answer(response: InferResponse, shared: Mapping[str, SharedOutput]) -> bytes:
    for tensor in response.outputs:
        strings = tensor.datatype == "BYTES"
        if tensor.array.nbytes > (_LARGE_STRINGS if strings else _LARGE_NUMBERS):
            return await asyncio.to_thread(response_bytes, response, shared)
    return response_bytes(response, shared)
