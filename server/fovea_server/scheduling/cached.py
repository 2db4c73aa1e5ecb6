"""A scheduler that asks the response cache first."""

from __future__ import annotations

import asyncio
import time
from hashlib import blake2b

from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.contract import Contract
from fovea_server.scheduling.wrapper import SchedulerWrapper
from fovea_server.statistics.model import ModelStatistics
from fovea_server.tensors import byte_strings
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor

# Hashing a request of this many bytes would block the event loop.
_LARGE = 64 << 10


class CachedScheduler(SchedulerWrapper):
    """Answers repeated requests from the cache, until the model is loaded again.

    Args:
        inside: computes answers that are not in the cache.
        contract: requests that do not fit it skip the cache.
    """

    def __init__(
        self,
        inside: Scheduler,
        contract: Contract,
        cache: ResponseCache,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(inside)
        self._contract = contract
        self._cache = cache
        self._statistics = statistics

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request from the cache, or run it and keep the answer."""
        with self._gate.open_for(request):
            return await self._answer(request)

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        super().close(timeout_s)
        self._cache.forget(self._contract.identity)

    async def _answer(self, request: InferRequest) -> InferResponse:
        arrived_ns = time.monotonic_ns()
        await self._contract.checked(request)
        identity = self._inside.identity
        if sum(tensor.data.nbytes for tensor in request.inputs) < _LARGE:
            key = _key(identity, request)
        else:
            key = await asyncio.to_thread(_key, identity, request)
        looking_ns = time.monotonic_ns()
        found = self._cache.find(key)
        found_ns = time.monotonic_ns()
        if found is not None:
            waited_ns, lookup_ns = looking_ns - arrived_ns, found_ns - looking_ns
            self._statistics.hit(found_ns - arrived_ns, waited_ns, lookup_ns)
            return InferResponse(
                found.model_name, found.model_version, list(found.outputs), request.id
            )
        response = await self._inside.infer(request)
        keeping_ns = time.monotonic_ns()
        self._cache.keep(self._contract.identity, key, response)
        self._statistics.missed(found_ns - looking_ns + time.monotonic_ns() - keeping_ns)
        return response


def _key(identity: bytes, request: InferRequest) -> bytes:
    asked = sorted({output.name for output in request.outputs})
    digest = blake2b(identity, digest_size=16)
    digest.update(repr(asked).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        # Lengths precede contents, so that different requests cannot give the same digest input.
        digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
        data = _wire(tensor)
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()


def _wire(tensor: InputTensor) -> memoryview | bytes:
    if isinstance(tensor.data, memoryview):
        return tensor.data
    if tensor.datatype == "BYTES":
        return byte_strings.encode(tensor.data)
    return tensor.data.tobytes()
