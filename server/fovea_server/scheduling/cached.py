"""A scheduler that asks the response cache first."""

from __future__ import annotations

import asyncio
import time
from hashlib import blake2b
from itertools import count

from fovea_server.scheduling.around import Around
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.statistics import ModelStatistics
from fovea_server.v2 import byte_strings
from fovea_server.v2.messages import InferRequest, InferResponse, InputTensor

# Bytes of a request from which hashing would hold up the event loop.
_LARGE = 64 << 10
_NUMBERS = count()


class CachedScheduler(Around):
    """Answers from the cache what was asked before; a model that is loaded again starts afresh.

    Args:
        inside: computes what is not in the cache.
        cache: of the server.
        statistics: of the model.
    """

    def __init__(
        self, inside: Scheduler, cache: ResponseCache, statistics: ModelStatistics
    ) -> None:
        super().__init__(inside)
        self._cache = cache
        self._statistics = statistics
        self._own = next(_NUMBERS).to_bytes(8)

    async def infer(self, request: InferRequest) -> InferResponse:
        """See `Scheduler`."""
        arrived_ns = time.monotonic_ns()
        if sum(tensor.data.nbytes for tensor in request.inputs) < _LARGE:
            key = self._key(request)
        else:
            key = await asyncio.to_thread(self._key, request)
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
        self._cache.keep(key, response)
        self._statistics.missed(found_ns - looking_ns + time.monotonic_ns() - keeping_ns)
        return response

    def _key(self, request: InferRequest) -> bytes:
        asked = sorted({output.name for output in request.outputs})
        digest = blake2b(self._own, digest_size=16)
        digest.update(repr(asked).encode())
        for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
            # Lengths come before contents, so that no two requests read the same.
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
